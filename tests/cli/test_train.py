"""`train`: the recipe's numbers unless others are given, the text, and the way to the model at the end."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mnemoscope.cli import main
from mnemoscope.training.recipe import Recipe
from mnemoscope.training.text import TextSource

Capture = pytest.CaptureFixture[str]


class FakeTraining(ModuleType):
    """A training room that notes how it was called."""

    TextSource = TextSource

    def __init__(self) -> None:
        super().__init__("mnemoscope.training")
        self.calls: list[tuple[Any, ...]] = []

    def train(
        self,
        out: Path,
        recipe: Recipe,
        *,
        wanted: TextSource,
        device: str,
        checkpoint_every: float,
        keep_checkpoints: int | None,
        say: Any,
        progress: Any,
    ) -> Path:
        kept = {"checkpoint_every": checkpoint_every, "keep_checkpoints": keep_checkpoints}
        self.calls.append((out, recipe, {"wanted": wanted, "device": device, **kept}))
        say("reading the documentation")
        progress("training", recipe.steps, recipe.steps, "steps; loss 3.125 nats per token, 1,500 tokens/s")
        return out / "model"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    fake = FakeTraining()
    monkeypatch.setitem(sys.modules, "mnemoscope.training", fake)
    return fake


def test_defaults_are_the_recipe_s(training: FakeTraining, capsys: Capture) -> None:
    assert main(["train", "--out", "m"]) == 0
    options = {"device": "auto", "checkpoint_every": 120.0, "keep_checkpoints": None, "wanted": TextSource()}
    assert training.calls == [(Path("m"), Recipe(), options)]
    out, err = capsys.readouterr()
    assert out == "m/model is a model; mnemoscope mine m/model builtin:pydocs --out atlas mines it\n"
    assert err.splitlines() == [
        "reading the documentation",
        "training: 6,700 of 6,700 steps (100 %), loss 3.125 nats per token, 1,500 tokens/s",
    ]


def test_given_numbers_replace_the_recipe_s(training: FakeTraining, capsys: Capture) -> None:
    words = "--steps 7 --seed 0 --batch 2 --device cuda --checkpoint-every 5 --keep-checkpoints 3 --json"
    assert main(["train", "--out", "m", *words.split()]) == 0
    options = {"device": "cuda", "checkpoint_every": 5.0, "keep_checkpoints": 3, "wanted": TextSource()}
    assert training.calls[0][1:] == (Recipe(steps=7, batch=2), options)
    assert json.loads(capsys.readouterr().out) == {"model": "m/model", "steps": 7, "tokens": 7 * 2 * 256}


def test_a_text_of_one_s_own(training: FakeTraining, tmp_path: Path, monkeypatch: Any, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.jsonl", "c.txt"):
        (tmp_path / name).touch()
    words = "--corpus a.txt --corpus b.jsonl --validation c.txt --max-bytes 9 --text-field body --split line --hidden 8"
    terms = "--sparsity 0 --revival 0.5"
    assert main(["train", "--out", "m", *words.split(), *terms.split()]) == 0
    ((_, recipe, options),) = training.calls
    named = {"validation": "c.txt", "max_bytes": 9, "text_field": "body", "split": "line"}
    assert options["wanted"] == TextSource(("a.txt", "b.jsonl"), **named)
    # Four memories for every dimension, as in the paper, unless their number is given.
    assert recipe == Recipe(hidden=8, memories=32, sparsity=0.0, revival=0.5)
    assert "mnemoscope mine m/model a.txt --out atlas" in capsys.readouterr().out
    assert main(["train", "--hidden", "8", "--memories", "5"]) == 0
    assert training.calls[1][1] == Recipe(hidden=8, memories=5)
