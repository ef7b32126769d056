"""The command that makes a missing table can be typed as it stands, and asks for the same plan."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.tables import model_words, rebuild_command
from mnemoscope.mining.plan.mining_plan import MiningPlan
from support.handbuilt_atlas import MANIFEST

PLAN: dict[str, Any] = {
    **dict.fromkeys(("revision", "validation", "max_sentences", "max_tokens")),
    **{"model": "gpt2", "corpus": "my text.txt", "text_field": "text", "split": "sentence", "per_sentence": "1"},
    **{"triggers": 50, "layers": [0, 1], "prefixes": 4000, "neighbours": 10, "removals": 10, "batch_tokens": 8192},
    **{"dtype": "float32", "device": "cpu", "seed": 0},
}


def manifest(entries: dict[str, Any] | None = None, **changed: Any) -> Manifest:
    return Manifest.of(MANIFEST | {"plan": PLAN | changed} | (entries or {}))


def test_the_usual_options_are_not_said_but_the_device_some_layers_and_a_part_are() -> None:
    found = rebuild_command(Path("an atlas"), "removals", manifest())
    assert found == "`mnemoscope mine gpt2 'my text.txt' --out 'an atlas' --device cpu --force`"
    found = rebuild_command(Path("a"), "values", manifest({"layers": [1], "part": {"index": 2, "of": 3}}))
    assert found == "`mnemoscope mine gpt2 'my text.txt' --out a --layers 1 --part 2/3 --device cpu --force`"
    assert rebuild_command(Path("an atlas"), "patterns", manifest()) == "`mnemoscope analyze 'an atlas' --patterns`"
    found = rebuild_command(Path("a"), "removals", manifest({"plan": {"seed": 0, "triggers": 50}}))
    assert found == "`mnemoscope mine MODEL CORPUS --out a --force`"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("split", "line", "--split line --device cpu"),
        ("validation", "held out.txt", "--validation 'held out.txt' --device cpu"),
        ("max_tokens", 5000, "--max-tokens 5000 --device cpu"),
        ("prefixes", 20, "--prefixes 20 --device cpu"),
        ("neighbours", 0, "--neighbours 0 --device cpu"),
        ("per_sentence", "all", "--per-sentence all --device cpu"),
        ("seed", 7, "--device cpu --seed 7"),
        ("dtype", "bfloat16", "--dtype bfloat16 --device cpu"),
        ("skip_special", True, "--device cpu --skip-special"),
        ("token_activations", True, "--device cpu --token-activations"),
        ("random", True, "--device cpu --random"),
    ],
)
def test_other_options_are(option: str, value: Any, said: str) -> None:
    found = rebuild_command(Path("a"), "prefixes", manifest(**{option: value}))
    assert found == f"`mnemoscope mine gpt2 'my text.txt' --out a {said} --force`"


def test_how_the_model_was_opened_is_said_behind_its_name() -> None:
    opened = {"revision": "main", "adapter": "my lora", "tokenizer": None, "dequantize": True}
    found = rebuild_command(Path("a"), "values", manifest(**opened))
    said = "--adapter 'my lora' --dequantize --revision main"
    assert found == f"`mnemoscope mine gpt2 {said} 'my text.txt' --out a --device cpu --force`"
    assert model_words(manifest(**opened).plan) == f"gpt2 {said}"
    assert model_words({"seed": 0, "triggers": 50}) == "MODEL"


LATER = {
    **dict.fromkeys(("roles", "width", "memorised", "attention", "samples", "similar_words", "importance"), "extend"),
    **dict.fromkeys(("token_activations", "random", "random_sentences"), "extend"),
    **dict.fromkeys(("readings", "key_readings", "readouts"), "lens"),
}
"""The optional tables, and which command makes them."""


@pytest.mark.parametrize("table", list(TABLES))
def test_tables_that_are_made_later(table: str) -> None:
    verb = LATER.get(table)
    if verb is None:
        assert "--model" not in rebuild_command(Path("an atlas"), table, manifest())
        return
    named = f" {table.removesuffix('_sentences')}" * (verb == "extend")
    said = f"`mnemoscope {verb} 'an atlas' --model gpt2 --revision main{named}`"
    assert rebuild_command(Path("an atlas"), table, manifest(revision="main")) == said


def test_every_option_is_one_that_mine_has() -> None:
    known = set(MiningPlan.__dataclass_fields__)
    changed = {name: "x" for name in PLAN if name not in ("model", "corpus", "seed", "triggers")}
    words = shlex.split(rebuild_command(Path("a"), "removals", manifest(**changed)).strip("`"))
    options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    assert options - {"out", "force"} <= known
