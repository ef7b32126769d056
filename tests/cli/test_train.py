"""`train`: the recipe's numbers unless others are given, and the way to the model at the end."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mnemoscope.cli import main

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class FakeRecipe:
    """A recipe of three numbers."""

    steps: int = 100
    batch: int = 4
    seed: int = 0
    tokens: int = 1000


class FakeTraining(ModuleType):
    """A training room that notes how it was called."""

    Recipe = FakeRecipe

    def __init__(self) -> None:
        super().__init__("mnemoscope.training")
        self.calls: list[tuple[Any, ...]] = []

    def train(self, out: Path, recipe: FakeRecipe, *, say: Any, progress: Any, **options: Any) -> Path:
        self.calls.append((out, recipe, options))
        say("reading the documentation")
        progress(recipe.steps, recipe.steps, 3.125, 1500.0)
        return out / "model"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    fake = FakeTraining()
    monkeypatch.setitem(sys.modules, "mnemoscope.training", fake)
    return fake


def test_defaults_are_the_recipe_s(training: FakeTraining, capsys: Capture) -> None:
    assert main(["train", "--out", "m"]) == 0
    assert training.calls == [(Path("m"), FakeRecipe(), {"device": "cpu", "checkpoint_every": 120.0})]
    out, err = capsys.readouterr()
    assert out.startswith("m/model is a model")
    assert err.splitlines() == [
        "reading the documentation",
        "training: 100 of 100 (100 %), loss 3.125 nats per token, 1,500 tokens/s",
    ]


def test_given_numbers_replace_the_recipe_s(training: FakeTraining, capsys: Capture) -> None:
    words = "--steps 7 --seed 0 --batch 2 --device cuda --checkpoint-every 5 --json"
    assert main(["train", "--out", "m", *words.split()]) == 0
    assert training.calls[0][1:] == (FakeRecipe(7, 2, 0), {"device": "cuda", "checkpoint_every": 5.0})
    assert json.loads(capsys.readouterr().out) == {"model": "m/model", "steps": 7, "tokens": 1000}


def test_a_negative_interval_is_refused(training: FakeTraining, capsys: Capture) -> None:
    assert main(["train", "--checkpoint-every", "-1"]) == 2
    assert "--checkpoint-every -1 is impossible" in capsys.readouterr().err
    assert training.calls == []
