"""Training: the loss falls, a stop costs nothing, and what does not belong together is refused."""

import io
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mnemoscope.errors import Interrupted, StoreFailed, TrainingError
from mnemoscope.models import load_model
from mnemoscope.training import Recipe, loop, train
from mnemoscope.training import step as one_step
from mnemoscope.training.step import Workers, batch_loss

pytestmark = pytest.mark.usefixtures("documentation")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def weights(folder: Path) -> dict[str, Any]:
    return dict(torch.load(folder / "checkpoint.pt", weights_only=True)["model"])


def quietly(text: str) -> None:
    pass


def test_gradients_taken_chunk_by_chunk_are_autograd_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_step, "CHUNK", 5)
    torch.manual_seed(0)
    # Numbers that bfloat16 holds exactly, so that only sums and products are rounded.
    hidden = torch.randn(13, 8).bfloat16().float().requires_grad_()
    head = torch.randn(11, 8).bfloat16().float().requires_grad_()
    targets = torch.randint(0, 11, (13,))
    network: Any = SimpleNamespace(
        base_model=lambda inputs, use_cache: SimpleNamespace(last_hidden_state=hidden[None]),
        get_output_embeddings=lambda: SimpleNamespace(weight=head),
    )
    expected = torch.nn.functional.cross_entropy(hidden @ head.T, targets)
    wanted = torch.autograd.grad(3 * expected, (hidden, head))
    for dtype, close in ((torch.bfloat16, 1e-2), (torch.float32, 1e-6)):
        found = batch_loss(network, targets[None], targets[None], dtype=dtype)
        gradients = torch.autograd.grad(3 * found, (hidden, head))
        assert found.item() == pytest.approx(expected.item(), rel=close)
        for own, right in zip(gradients, wanted, strict=True):
            assert own.shape == right.shape
            assert ((own - right).norm() / right.norm()).item() < close


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_counts_steps_and_ends_with_the_loss(
    progress: bool, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    train(tmp_path, replace(recipe, steps=3), say=quietly, progress=progress)
    drawn = re.search(r"training: .*/3\.00 \[.* steps/s, loss \d\.\d{3} nats per token", stream.getvalue())
    assert (drawn is not None) is progress, stream.getvalue()
    assert "tokens/s/s" not in stream.getvalue()


def test_the_loss_falls_and_the_log_tells(recipe: Recipe, tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []
    said: list[str] = []
    made = train(
        tmp_path, replace(recipe, steps=60), evaluate_every=20, say=said.append,
        progress=lambda stage, step, of, note: seen.append((int(step), int(of or 0), float(note.split()[2]))),
    )  # fmt: skip
    assert made == tmp_path / "model"
    assert [step for step, _, _ in seen] == list(range(1, 61))
    assert seen[0][2] > 5.5  # about log(300)
    assert seen[-1][2] < seen[0][2] - 0.5
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [20, 40, 60]
    assert lines[-1]["tokens"] == 60 * 8 * 16
    assert lines[-1]["held_out_loss"] < lines[0]["held_out_loss"] < 5.7
    assert said[0] == "reading the documentation on this machine"


def test_checkpoints_are_kept_as_models(recipe: Recipe, tmp_path: Path) -> None:
    train(tmp_path, replace(recipe, steps=5), keep_checkpoints=2, say=quietly)
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert [folder.name for folder in kept] == ["step-000002", "step-000004"]
    one, other = (load_model(folder) for folder in kept)
    assert one.fingerprint != other.fingerprint
    assert one.tokenizer_fingerprint == other.tokenizer_fingerprint


@pytest.mark.full
def test_ctrl_c_saves_and_the_rest_ends_in_the_same_weights(recipe: Recipe, tmp_path: Path) -> None:
    def stop(stage: str, step: float, of: float | None, note: str) -> None:
        if step in (7, 19):
            os.kill(os.getpid(), signal.SIGINT)

    train(tmp_path / "whole", recipe, say=quietly)
    for step in (7, 19):
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 30; the same command goes on"):
            train(tmp_path / "cut", recipe, say=quietly, progress=stop)
    said: list[str] = []
    train(tmp_path / "cut", recipe, say=said.append)
    assert said == ["going on from step 19"]
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert list(whole) == list(cut)
    assert all(torch.equal(tensor, cut[name]) for name, tensor in whole.items())
    model = "model/model.safetensors"
    assert (tmp_path / "whole" / model).read_bytes() == (tmp_path / "cut" / model).read_bytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_kill_costs_no_more_than_since_the_last_checkpoint(recipe: Recipe, tmp_path: Path) -> None:
    class Killed(BaseException):
        """What no handler in the loop may save after."""

    def kill(stage: str, step: float, of: float | None, note: str) -> None:
        if step == 12:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path, recipe, say=quietly, checkpoint_every=0, progress=kill)
    said: list[str] = []
    train(tmp_path, recipe, say=said.append)
    assert said == ["going on from step 11"]


def test_a_folder_of_another_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    train(tmp_path, replace(recipe, steps=2), say=quietly)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match="was begun with another recipe; choose another folder, or the same recipe"):
        train(tmp_path, replace(recipe, steps=2, learning_rate=1e-3), say=quietly)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    said: list[str] = []
    train(tmp_path, replace(recipe, steps=3), say=said.append)
    assert said == ["going on from step 2"]


@pytest.mark.parametrize("damage", ["cut", "noise", "other"])
def test_a_damaged_checkpoint_is_refused(recipe: Recipe, tmp_path: Path, damage: str) -> None:
    train(tmp_path, replace(recipe, steps=1), say=quietly)
    path = tmp_path / "checkpoint.pt"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "noise":
        path.write_bytes(b"no checkpoint at all")
    else:
        torch.save({"step": 1}, path)
    with pytest.raises(TrainingError, match=r"checkpoint\.pt is not a checkpoint that can be read; remove it"):
        train(tmp_path, replace(recipe, steps=2), say=quietly)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, replace(recipe, steps=1), say=quietly)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(state: object, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.torch, "save", full)
    with pytest.raises(StoreFailed, match="No space left on device"):
        train(tmp_path, replace(recipe, steps=2), say=quietly)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "log.jsonl", "model", "text"]


def test_workers_leave_the_gradient_of_the_whole_batch(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts of four rows each on threads and replicas of their own, which share the weights."""
    batch = torch.randint(1, 300, (12, 17), generator=torch.Generator().manual_seed(0))
    found = []
    for threads, count in ((1, 1), (9, 3)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        model: Any = recipe.model()
        workers, parts = Workers(model, len(batch)), []

        def take(network: Any, terms: Any, part: torch.Tensor, parts: list[int] = parts) -> float:
            parts.append(len(part))
            loss = batch_loss(network, part[:, :-1], part[:, 1:], dtype=torch.float32)
            (loss + terms.penalty(torch.ones_like(part[:, :-1]) > 0, sparsity=0.1, free=2.0, revival=0.0)).backward()
            return loss.item()

        for _ in range(2):  # the second with changed weights, and the gradients of the first put away
            loss = workers.share_out(take, batch)
            found.append((loss, {name: own.grad.clone() for name, own in model.named_parameters()}))
            with torch.no_grad():
                for own in model.parameters():
                    own -= 0.3 * own.grad
                    own.grad = None
        assert parts == 2 * count * [12 // count]
    for one, other in ((found[0], found[2]), (found[1], found[3])):
        assert one[0] == pytest.approx(other[0], rel=1e-5)
        for name, gradient in one[1].items():
            torch.testing.assert_close(other[1][name], gradient, rtol=1e-3, atol=1e-5)
    assert found[1][0] < found[0][0]


def test_the_matrices_inside_the_blocks_are_updated_as_the_recipe_says(recipe: Recipe) -> None:
    run = loop.TrainingState(replace(recipe, learning_rate=3e-3), "cpu")
    names = {id(parameter): each for each, parameter in run.model.named_parameters()}
    owners = {
        names[id(parameter)]: (rate, group["weight_decay"])
        for group, rate in zip(run.optimiser.param_groups, run.base_rates, strict=True)
        for parameter in group["params"]
    }
    assert owners.keys() == set(names.values())
    for part in ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "attention.query_key_value", "attention.dense"):
        assert owners[f"gpt_neox.layers.1.{part}.weight"] == (3e-3, 0.1)
    assert owners["gpt_neox.embed_in.weight"] == (1e-2, 0.1)
    assert owners["gpt_neox.layers.1.mlp.dense_4h_to_h.bias"] == (1e-2, 0.0)


def test_a_run_of_another_kind_goes_on_as_if_it_had_not_stopped(recipe: Recipe, tmp_path: Path) -> None:
    own = replace(recipe, sparsity=0.05, revival=0.0)
    train(tmp_path / "whole", replace(own, steps=6, decay=0.0), say=quietly)
    train(tmp_path / "cut", replace(own, steps=3, decay=0.0), say=quietly)
    with pytest.raises(TrainingError, match="another recipe"):
        train(tmp_path / "cut", replace(recipe, steps=6, decay=0.0), say=quietly)
    train(tmp_path / "cut", replace(own, steps=6, decay=0.0), say=quietly)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(tensor, cut[name]) for name, tensor in whole.items())


def test_a_loss_that_is_not_a_number_ends_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loop.batch_loss

    def broken(*tensors: Any, dtype: torch.dtype) -> torch.Tensor:
        return whole(*tensors, dtype=dtype) * torch.nan

    monkeypatch.setattr(loop, "batch_loss", broken)
    with pytest.raises(TrainingError, match="the loss became NaN at step 1; start again with a lower learning rate"):
        train(tmp_path, recipe, say=quietly)
    assert not (tmp_path / "checkpoint.pt").exists()
