"""Training: the loss falls, a stopped run goes on, and what does not belong together is refused."""

import io
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mnemoscope.errors import Interrupted, StoreFailed, TrainingError
from mnemoscope.models import load_model
from mnemoscope.training import Recipe, loop, train

pytestmark = pytest.mark.usefixtures("documentation")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def quietly(text: str) -> None:
    pass


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
        tmp_path,
        replace(recipe, steps=60),
        evaluate_every=20,
        say=said.append,
        progress=lambda stage, step, of, note: seen.append((int(step), int(of or 0), float(note.split()[2]))),
    )
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


def test_ctrl_c_saves_and_the_same_command_goes_on(recipe: Recipe, tmp_path: Path) -> None:
    def stop(stage: str, step: float, of: float | None, note: str) -> None:
        if step in (7, 19):
            os.kill(os.getpid(), signal.SIGINT)

    for step in (7, 19):
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 30"):
            train(tmp_path, recipe, say=quietly, progress=stop)
    said: list[str] = []
    made = train(tmp_path, recipe, say=said.append)
    assert said == ["going on from step 19"]
    assert load_model(made).sizes.layers == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_killed_training_goes_on_from_its_last_checkpoint_and_ends_with_a_model(
    recipe: Recipe, tmp_path: Path
) -> None:
    class Killed(BaseException):
        """What no handler in the loop may save after."""

    def kill(stage: str, step: float, of: float | None, note: str) -> None:
        if step == 12:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path, recipe, say=quietly, checkpoint_every=0, progress=kill)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 11
    run = loop.TrainingState(recipe, "cpu")
    run.load(tmp_path / "checkpoint.pt")
    assert run.step == 11
    assert all(torch.equal(tensor, saved["model"][name]) for name, tensor in run.model.state_dict().items())
    assert {float(each["step"]) for each in run.optimiser.state_dict()["state"].values()} == {11.0}
    said: list[str] = []
    steps: list[float] = []
    made = train(tmp_path, recipe, say=said.append, progress=lambda *told: steps.append(told[1]))
    assert said == ["going on from step 11"]
    assert steps == list(range(12, 31))
    assert load_model(made).sizes.memories == (24, 24)


def test_a_folder_of_another_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    train(tmp_path, replace(recipe, steps=2), say=quietly)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match="was begun with another recipe"):
        train(tmp_path, replace(recipe, steps=2, learning_rate=1e-3), say=quietly)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    said: list[str] = []
    train(tmp_path, replace(recipe, steps=3), say=said.append)
    assert said == ["going on from step 2"]


@pytest.mark.parametrize("damage", ["cut", "noise", "other", "weights"])
def test_a_damaged_checkpoint_is_refused(recipe: Recipe, tmp_path: Path, damage: str) -> None:
    train(tmp_path, replace(recipe, steps=1), say=quietly)
    path = tmp_path / "checkpoint.pt"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "noise":
        path.write_bytes(b"no checkpoint at all")
    elif damage == "other":
        torch.save({"step": 1}, path)
    else:
        state = torch.load(path, weights_only=True)
        state["model"].popitem()
        torch.save(state, path)
    with pytest.raises(TrainingError, match=r"checkpoint\.pt is not a checkpoint that can be read"):
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


def test_scores_are_made_for_a_chunk_of_positions_at_a_time(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 128 positions: the loss and the gradient's effect are those of all at once."""
    text = loop.prepare_text(recipe, tmp_path, say=quietly)
    one, other = (loop.TrainingState(replace(recipe, sparsity=0.0), "cpu") for _ in range(2))
    first = one.advance(text)
    monkeypatch.setattr(loop, "CHUNK", 50)
    assert other.advance(text) == pytest.approx(first, rel=1e-4)
    assert other.advance(text) == pytest.approx(one.advance(text), rel=1e-3)
    network: Any = recipe.model()
    batch = torch.from_numpy(loop.windows(text.training, recipe, 0))
    scores = network(batch[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
    assert first == pytest.approx(float(expected.detach()), rel=1e-3)


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


def test_a_loss_that_is_not_a_number_ends_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loop.cross_entropy
    monkeypatch.setattr(loop, "cross_entropy", lambda *given, **named: whole(*given, **named) * torch.nan)
    with pytest.raises(TrainingError, match="the loss became NaN at step 1"):
        train(tmp_path, recipe, say=quietly)
    assert not (tmp_path / "checkpoint.pt").exists()
