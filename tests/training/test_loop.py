"""Training: the loss falls, a stop costs nothing, and what does not belong together is refused."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mnemoscope.errors import Interrupted, StoreFailed, TrainingError
from mnemoscope.training import Recipe, loop, train
from mnemoscope.training.loop import _ChunkedLoss


def weights(folder: Path) -> dict[str, Any]:
    return dict(torch.load(folder / "checkpoint.pt", weights_only=True)["model"])


def quietly(text: str) -> None:
    pass


def test_gradients_taken_chunk_by_chunk_are_autograd_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHUNK", 5)
    torch.manual_seed(0)
    # Numbers that bfloat16 holds exactly, so that only sums and products are rounded.
    hidden = torch.randn(13, 8).bfloat16().float().requires_grad_()
    head = torch.randn(11, 8).bfloat16().float().requires_grad_()
    targets = torch.randint(0, 11, (13,))
    expected = torch.nn.functional.cross_entropy(hidden @ head.T, targets)
    wanted = torch.autograd.grad(3 * expected, (hidden, head))
    found = _ChunkedLoss.apply(hidden, head, targets)
    gradients = torch.autograd.grad(3 * found, (hidden, head))
    assert found.item() == pytest.approx(expected.item(), rel=1e-2)
    for own, right in zip(gradients, wanted, strict=True):
        assert own.shape == right.shape
        assert ((own - right).norm() / right.norm()).item() < 1e-2


def test_the_loss_falls_and_the_log_tells(recipe: Recipe, documentation: list[str], tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []
    said: list[str] = []
    made = train(
        tmp_path, replace(recipe, steps=60), evaluate_every=20, say=said.append,
        progress=lambda step, of, loss, rate: seen.append((step, of, loss)),
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


def test_ctrl_c_saves_and_the_rest_ends_in_the_same_weights(
    recipe: Recipe, documentation: list[str], tmp_path: Path
) -> None:
    def stop(step: int, of: int, loss: float, rate: float) -> None:
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


def test_a_kill_costs_no_more_than_since_the_last_checkpoint(
    recipe: Recipe, documentation: list[str], tmp_path: Path
) -> None:
    class Killed(BaseException):
        """What no handler in the loop may save after."""

    def kill(step: int, of: int, loss: float, rate: float) -> None:
        if step == 12:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path, recipe, say=quietly, checkpoint_every=0, progress=kill)
    said: list[str] = []
    train(tmp_path, recipe, say=said.append)
    assert said == ["going on from step 11"]


def test_a_folder_of_another_recipe_is_refused(recipe: Recipe, documentation: list[str], tmp_path: Path) -> None:
    train(tmp_path, replace(recipe, steps=2), say=quietly)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match="was begun with another recipe; choose another folder, or the same recipe"):
        train(tmp_path, replace(recipe, steps=2, learning_rate=1e-3), say=quietly)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    said: list[str] = []
    train(tmp_path, replace(recipe, steps=3), say=said.append)
    assert said == ["going on from step 2"]


@pytest.mark.parametrize("damage", ["cut", "noise", "other"])
def test_a_damaged_checkpoint_is_refused(recipe: Recipe, documentation: list[str], tmp_path: Path, damage: str) -> None:
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
    recipe: Recipe, documentation: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_loss_that_is_not_a_number_ends_training(
    recipe: Recipe, documentation: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return model.get_output_embeddings().weight.sum() * torch.nan

    monkeypatch.setattr(loop, "batch_loss", broken)
    with pytest.raises(TrainingError, match="the loss became NaN at step 1; start again with a lower learning rate"):
        train(tmp_path, recipe, say=quietly)
    assert not (tmp_path / "checkpoint.pt").exists()
