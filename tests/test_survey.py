"""runs/survey.py: its reference finds planted faults, and a survey goes on where an entry crashes or hangs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest

import survey
from survey_models import Entry, build, entries, save
from survey_reference import LOWEST_RANK, BlackBox, Tables, compare

GPT2 = Entry("causal", "gpt2", "GPT2LMHeadModel")
MIXTRAL = Entry("causal", "mixtral", "MixtralForCausalLM")
SENTENCES = survey.texts()[0][:40]
Compared = tuple[Tables, Any, BlackBox]
Fault = Callable[[Tables], Tables]


def coefficients(change: pl.Expr) -> Fault:
    return lambda tables: replace(tables, triggers=[each.with_columns(change) for each in tables.triggers])


def moved(column: str) -> pl.Expr:
    """The column off by one, the highest of all becoming the lowest."""
    return ((pl.col(column) + 1) % (pl.col(column).max() + 1)).alias(column)


FAULTS = {
    "coefficients times 1.001": coefficients(pl.col("coefficient") * 1.001),
    "positions off by one": coefficients(moved("position")),
    "memories off by one": coefficients(moved("memory")),
    "sentences off by one": coefficients(moved("sentence")),
    "next tokens off by one": coefficients(moved("next_token")),
    "every best trigger lost": lambda tables: replace(
        tables, triggers=[each.filter(pl.col("rank") > 0) for each in tables.triggers]
    ),
    "activity of the memory beside": lambda tables: replace(
        tables, activity=[each.with_columns(moved("memory")) for each in tables.activity]
    ),
    "layers exchanged": lambda tables: replace(tables, triggers=tables.triggers[::-1], activity=tables.activity[::-1]),
}


def mined(entry: Entry, folder: Path) -> Compared:
    """The tables of an entry's atlas, and what the reference measures beside them."""
    model = build(entry)
    save(model, folder / "model", framed=False)
    lines = [" ".join(f"w{token}" for token in sentence) for sentence in survey.texts()[0]]
    (folder / "mined.txt").write_text("\n".join(lines[:40]) + "\n")
    (folder / "held-out.txt").write_text("\n".join(lines[40:44]) + "\n")
    options = ["--validation", str(folder / "held-out.txt"), "--split", "line", "--removals", "1"]
    made, said = survey.command(
        "mine", str(folder / "model"), str(folder / "mined.txt"), *options, "--out", str(folder / "atlas"), "--json"
    )
    assert made is not None, said
    tables = Tables.read(folder / "atlas")
    box = BlackBox(model, tables, [1])
    return tables, box.coefficients(SENTENCES), box


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return mined(GPT2, tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return mined(MIXTRAL, tmp_path_factory.mktemp("mixtral"))


def test_a_sound_atlas_has_no_differences(dense: Compared) -> None:
    tables, measured, _ = dense
    found = compare(tables, measured, SENTENCES)
    assert (found.count, found.first) == (0, [])
    assert (found.memories, found.triggers) == (4 * 44, sum(each.height for each in tables.triggers))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(dense: Compared, fault: str) -> None:
    tables, measured, _ = dense
    assert compare(FAULTS[fault](tables), measured, SENTENCES).count > 50


def test_values_of_the_memory_beside_are_found(dense: Compared) -> None:
    tables, _, box = dense
    assert box.promoted(tables, SENTENCES[0]) == [0] * 9
    beside = replace(tables, values=[each.with_columns(moved("memory")) for each in tables.values])
    assert median(box.promoted(beside, SENTENCES[0])) > LOWEST_RANK


@pytest.mark.full
def test_of_experts_a_lost_router_weight_is_found(experts: Compared) -> None:
    tables, measured, _ = experts
    assert compare(tables, measured, SENTENCES).count == 0
    weightless = coefficients(pl.col("coefficient") / pl.col("router_weight"))
    elsewhere = coefficients(((pl.col("expert") + 1) % 4).alias("expert"))
    for fault in (weightless, elsewhere, *FAULTS.values()):
        assert compare(fault(tables), measured, SENTENCES).count > 50


def test_shares_hold_every_entry_once() -> None:
    parts = [each for number in range(1, 41) for each in survey.chosen([], f"{number}/40")]
    assert sorted(parts) == entries()
    assert len(entries()) > 300


@pytest.mark.parametrize("share", ["0/4", "5/4", "2", "a/b", ""])
def test_another_share_is_refused(share: str) -> None:
    if share:
        with pytest.raises(SystemExit, match="--share is I/N"):
            survey.chosen([], share)
    else:
        assert survey.chosen([], share) == entries()


def test_a_type_that_is_not_listed_is_refused() -> None:
    with pytest.raises(SystemExit, match="'gpt17'"):
        survey.chosen(["gpt2", "gpt17"], None)


def test_an_entry_that_crashes_or_hangs_is_a_result() -> None:
    crashed = survey.look_apart(Entry("causal", "nothing", "Nothing"), 60, {"torch": "1"})
    assert (crashed["state"], crashed["type"], crashed["torch"]) == ("crashed", "nothing", "1")
    assert "ended with 1" in crashed["reason"]
    hung = survey.look_apart(GPT2, 0.1, {})
    assert (hung["state"], hung["reason"]) == ("hung", "not done after 0.1 s")


def test_only_whole_results_of_these_versions_count(tmp_path: Path) -> None:
    old, new = ({"list": "causal", "type": "gpt2", "torch": version} for version in "12")
    (tmp_path / "results.jsonl").write_text(f'{json.dumps(new)}\n{json.dumps(old)}\n{{"list": "causal", "ty')
    assert survey.read_results(tmp_path, {"torch": "2"}) == {("causal", "gpt2"): new}
    assert survey.read_results(tmp_path, {"torch": "3"}) == {}


def test_the_table_stands_between_its_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "models.md"
    page.write_text(f"# Models\n\n{survey.BEGIN}\nold\n{survey.END}\n\nMore\n")
    monkeypatch.setattr(survey, "PAGE", page)
    verified = {"list": "causal", "type": "gpt2", "class": "GPT2LMHeadModel", "block": "pre-norm", "gated": False}
    verified |= {
        "activation": "gelu_new",
        "state": "verified",
        "memories": 384,
        "triggers": 1500,
        "largest_error": 2e-6,
    }
    refused = {"list": "masked", "type": "bert", "class": "BertForMaskedLM", "state": "refused", "reason": "no decoder"}
    lines = [json.dumps({**each, **survey.versions()}) for each in (verified, refused)]
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    survey.write_table(tmp_path)
    text = page.read_text()
    assert text.startswith("# Models\n\n<!-- survey -->\nWith transformers ")
    assert text.endswith(f"{survey.END}\n\nMore\n")
    assert "2 entries: 1 verified, 1 refused; compared 384 memories, 1,500 triggers, largest error 2e-06." in text
    assert (
        "| `gpt2` | causal | `GPT2LMHeadModel` | pre-norm, gelu_new | verified: 384 memories, 1,500 triggers |" in text
    )
    assert "| `bert` | masked | `BertForMaskedLM` |  | refused: no decoder |" in text
