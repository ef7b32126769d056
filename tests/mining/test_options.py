"""The options: that `mine` has them all, and the small languages: layers, parts, numbers of memories."""

from dataclasses import asdict, fields
from inspect import signature
from pathlib import Path

import pytest

from mining.conftest import stop_at
from mnemoscope.atlas.manifest import begin, unfinished_plan
from mnemoscope.errors import Interrupted, OptionError
from mnemoscope.foundation.options.mining_options import (
    MiningOptions,
    choose_layers,
    parse_layers,
    parse_part,
    parse_removals,
)
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.mining import merge, mine, run
from mnemoscope.models import load_model
from mnemoscope.models.opening import loading


def test_layers_are_named_by_text_or_by_numbers() -> None:
    assert parse_layers("7, 0-2,1") == (0, 1, 2, 7)
    assert parse_layers([3, 1, 3]) == (1, 3)
    assert choose_layers(None, 3) == (0, 1, 2)
    assert choose_layers("2,0", 3) == (0, 2)


OTHER_DIGITS = ("\u0660-\u0662", "\u00b2", "1_0", pytest.param("9" * 5_000, id="5,000 digits"))


@pytest.mark.parametrize("layers", ["", "-1", "0-", "1.5", "3-1", "x", "1,", *OTHER_DIGITS, [-1], []])
def test_what_names_no_layers_is_refused(layers: str | list[int]) -> None:
    with pytest.raises(OptionError, match="write them as 0-3,7"):
        parse_layers(layers)


@pytest.mark.parametrize("layers", ["1-3", "99", [0, 3]])
def test_a_layer_that_the_model_lacks_is_refused(layers: str | list[int]) -> None:
    with pytest.raises(OptionError, match=r"(3|99) is not within the model's layers 0-2"):
        choose_layers(layers, 3)


def test_parts_are_named_by_text_or_by_two_numbers() -> None:
    assert parse_part(" 1/1 ") == (1, 1)
    assert parse_part((2, 3)) == (2, 3)
    for wrong in ("0/3", "4/3", "1", "1/", "-1/3", "1/3/5", "\u0661/\u0663", (0, 1), (3, 2)):
        with pytest.raises(OptionError, match="is not a part"):
            parse_part(wrong)


def test_removals_are_a_number_or_all() -> None:
    assert (parse_removals("12"), parse_removals(0), parse_removals("all")) == (12, 0, "all")
    for wrong in ("some", "-1", -1, "1.5", "٣", "²", "9" * 5_000):
        with pytest.raises(OptionError, match="is not a number of memories per layer, nor all"):
            parse_removals(wrong)


def test_mine_spells_every_option_out_and_hands_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[MiningOptions] = []
    monkeypatch.setattr(run, "run_mining", lambda model, corpus, out, options, progress: taken.append(options) or out)
    monkeypatch.setattr(run, "open_atlas", lambda out: out)
    spelled = {name: one.default for name, one in signature(mine).parameters.items()}
    spelled["dictionary"] = spelled.pop("dict")
    for name in ("model", "corpus", "out", "progress"):
        del spelled[name]
    own = {one.name: one.default for kind in (MiningOptions, ModelOptions) for one in fields(kind)}
    assert spelled == {name: default for name, default in own.items() if name != "opening"}
    mine("m", "c", out="a")
    # A field of ids does not go with a text field of another name than usual.
    given = {
        "layers": "0",
        "part": "1/2",
        "removals": 3,
        "own": 4,
        "side": "encoder",
        "checkpoint_every": 5.0,
        "sample": 0.5,
        "max_memory": "2GiB",
    }
    given |= {
        "text_field": "text",
        "split": "line",
        "per_sentence": "all",
        "dtype": "float16",
        "device": "cpu",
    }
    given |= {"source_field": None}
    numbers = (
        "triggers",
        "max_sentences",
        "max_tokens",
        "prefixes",
        "neighbours",
        "batch_tokens",
        "seed",
        "skip_bad_rows",
    )
    given |= {name: number for number, name in enumerate(numbers, 1)}
    given = {name: given.get(name, f"own {name}") for name in spelled if name != "dictionary"}
    mine("m", "c", out="a", dict="own dictionary", **given)
    told = [asdict(options) for options in taken]
    assert [one | one.pop("opening") for one in told] == [spelled, {**given, "dictionary": "own dictionary"}]


def test_merge_and_load_model_take_every_option_of_a_model() -> None:
    for function in (merge, load_model):
        taken = {name: one.default for name, one in signature(function).parameters.items()}
        taken["dictionary"] = taken.pop("dict")
        assert {one.name: taken[one.name] for one in fields(ModelOptions)} == asdict(AS_USUAL)


@pytest.mark.full
def test_auto_goes_on_on_the_device_that_a_run_was_begun_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handmade model is tiny; what matters is what `load_model` is asked for, and what the plan says."""
    asked: list[str] = []
    load = run.load_model
    monkeypatch.setattr(run, "load_model", lambda *names, **said: asked.append(said["device"]) or load(*names, **said))
    (tmp_path / "text.txt").write_text("\n".join(["the cat sat on the mat"] * 3))
    named = ("handmade:worked-example", tmp_path / "text.txt")

    with pytest.raises(Interrupted):
        mine(*named, out=tmp_path / "atlas", progress=stop_at("values"))
    plan = unfinished_plan(tmp_path / "atlas")
    assert plan is not None
    assert (plan["plan"]["device"], asked) == ("cpu", ["auto"])

    begin(tmp_path / "atlas", plan=plan | {"plan": plan["plan"] | {"device": "cuda"}})
    with pytest.raises(OptionError, match="atlas was begun on cuda"):
        mine(*named, out=tmp_path / "atlas")
    mine(*named, out=tmp_path / "atlas", force=True)
    assert asked == ["auto", "auto"]

    with pytest.raises(Interrupted):
        mine(*named, out=tmp_path / "other", progress=stop_at("values"))
    monkeypatch.setattr(loading.torch.cuda, "is_available", lambda: True)  # a card is put in meanwhile
    mine(*named, out=tmp_path / "other")
    assert asked == ["auto", "auto", "auto", "cpu"]
