"""Every answer == the slow reference: other tables (the slow model's), other code (loops), on every kind of block."""

import math
import re
from pathlib import Path

import polars as pl
import pytest

from mining.conftest import byte_tokenizer, odd_text
from mining.reference import documents_of
from mining.reference_passes import distinct, given, held_out
from mining.slow_fairseq import SlowFairseq, Variant, split_words, write_checkpoint
from mining.slow_model import SlowTransformer
from mnemoscope.models import load_model
from mnemoscope.questions import answer, load_question
from models.conftest import build
from questions.reference_layers import QUESTIONS
from questions.reference_memories import Found, Tables, value_rank
from questions.reference_tables import literal_tables, mined_tables, slow_tables, write_random_patterns
from support.mined import mined_text

END = "<|endoftext|>"
LAYERS = {"gpt2": "n_layer", "gpt2-relu": "n_layer", "gptj": "n_layer"}  # others call it num_hidden_layers
KINDS = ("gpt2", "opt", "opt-350m", "gpt_neox", "llama", "olmo2")
MEASURED = re.compile("effective|probability|norm|(first|last|random)_")  # float32 numbers; all else counts something
WILSON = re.compile(r"(agreement(_lower|_upper|_best_layer)?|most_frequent_token|without_target|within_\d+|decile_\d)$")


def assert_answers(path: Path, question: str, expected: Found, *, near: float = 1e-9) -> pl.DataFrame:
    """Value and count of every name that the reference knows, each once; numbers that were measured within `near`."""
    found = answer(path, question)
    rows = {(row["layer"], row["name"]): row for row in found.rows(named=True)}
    assert len(rows) == found.height, f"{question}: a name is there twice"
    assert expected
    for (layer, name), (value, count) in expected.items():
        what = f"{question}, layer {layer}, {name}"
        assert (layer, name) in rows, what
        row = rows[layer, name]
        assert row["count"] == count, f"{what}: {row}, reference {count}"
        if value is None:
            assert row["value"] is None, f"{what}: {row}, reference null"
            continue
        assert row["value"] is not None, f"{what}: null, reference {value}"
        allowed = near * max(1.0, abs(value)) if MEASURED.search(name) else 1e-9
        assert abs(row["value"] - value) <= allowed, f"{what}: {row}, reference {value}"
        assert row["low"] is None or row["low"] <= row["value"] + 1e-12, what
        assert row["high"] is None or row["high"] >= row["value"] - 1e-12, what
        if question.startswith("value_") and WILSON.match(name):
            assert (row["low"], row["high"]) == pytest.approx(wilson(value, count)), what
    return found


def wilson(p: float, n: int) -> tuple[float, float]:
    """The shares q that are 1.96 of their own standard deviations away from p: (p - q)^2 = z^2 q (1 - q) / n."""
    z2 = 1.959963984540054**2 / n
    a, b, c = 1 + z2, -(2 * p + z2), p * p
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def assert_all(path: Path, tables: Tables, *, near: float) -> None:
    formula = literal_tables(tables)
    for question, reference in QUESTIONS.items():
        expected = reference(tables)
        for (layer, name), number in reference(formula).items():
            if name in load_question(question).literal:
                expected[layer, f"literal_{name}"] = number
        assert_answers(path, question, expected, near=near)


def check(kind: str, directory: Path, *, triggers: int = 8, **special: str) -> None:
    """Mines a tiny model of three layers and asks everything of it; with a beginning token, of a second text."""
    hf = build(kind, **{LAYERS.get(kind, "num_hidden_layers"): 3})
    tokenizer = byte_tokenizer(**special)
    beginning = 0 if special else None
    raw, other = odd_text(40 if special else 150), odd_text(30, seed=1)
    model, asked = load_model(hf, tokenizer=tokenizer), {"triggers": triggers, "removals": 1, "prefixes": 12, "seed": 5}
    out = mined_text(model, directory, raw, other=other if special else None, **asked)
    write_random_patterns(out)
    mined = distinct(raw, tokenizer, beginning)
    text = held_out(mined, beginning)
    if special:
        text = given(mined, distinct(other, tokenizer, beginning), len(documents_of(raw, "line")), beginning)
    tokens = {number: sentence.tokens for number, sentence in enumerate(mined)}
    slow = SlowTransformer(hf, beginning=beginning)
    tables = slow_tables(out, slow, text=text, tokens=tokens, asked=12, removals=1, seed=5)
    # Shares are equal to 1e-9; means and quantiles of float32 numbers to what float32 holds.
    assert_all(out, tables, near=1e-4)
    assert_all(out, mined_tables(out), near=1e-9)


@pytest.mark.fast(0, full=4)
@pytest.mark.parametrize("kind", KINDS)
def test_every_question_on_every_kind_of_block(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, bos_token=END, eos_token=END)


# The first is as the paper's model is.
@pytest.mark.full
@pytest.mark.parametrize(("tied", "final_norm"), [(True, False), (False, True)], ids=["tied", "untied-normed"])
def test_every_question_of_an_adaptive_softmax(tied: bool, final_norm: bool, tmp_path: Path) -> None:
    """A checkpoint in the paper's own format: words, two levels of scores, votes that depend on the value's length."""
    variant = Variant(tied, final_norm)
    slow = SlowFairseq(write_checkpoint(tmp_path / "tiny.pt", variant), variant)
    model = load_model(f"fairseq:{tmp_path / 'tiny.pt'}")
    raw, other = odd_text(40), odd_text(30, seed=1)
    out = mined_text(model, tmp_path, raw, other=other, triggers=6, removals=1, prefixes=12, seed=5)
    write_random_patterns(out)
    mined = distinct(raw, split_words, 2)
    text = given(mined, distinct(other, split_words, 2), len(documents_of(raw, "line")), 2)
    tokens = {number: sentence.tokens for number, sentence in enumerate(mined)}
    assert max(map(len, tokens.values())) < model.longest  # no sentence is cut
    tables = slow_tables(out, slow, text=text, tokens=tokens, asked=12, removals=1, seed=5)
    assert len({row["ffn_vote_top"] for row in tables.predictions}) > 3
    assert_all(out, tables, near=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2-relu", "opt-no-final-norm", "gptj", "gemma2"])
def test_every_question_on_more_kinds(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, bos_token=END, eos_token=END)


@pytest.mark.full
def test_every_question_without_a_beginning_token_on_held_out_text(tmp_path: Path) -> None:
    check("llama", tmp_path, triggers=28)


def test_every_question_where_no_memory_fires(tmp_path: Path) -> None:
    """No triggers, no removals, no targets: nothing is defined, nothing is guessed, nothing fails."""
    hf, tokenizer = build("gpt2-relu", n_layer=3), byte_tokenizer(bos_token=END)
    for block in hf.transformer.h:
        block.mlp.c_fc.bias[:] = -1000.0
    out = mined_text(load_model(hf, tokenizer=tokenizer), tmp_path, odd_text(10), other=odd_text(10, seed=1))
    write_random_patterns(out)
    tables = mined_tables(out)
    assert not any(tables.triggers.values())
    assert {row["effective"] for row in tables.predictions} == {0.0}
    assert_all(out, tables, near=1e-9)
    found = {row["name"]: row for row in answer(out, "layer_composition").filter(layer=0).rows(named=True)}
    assert (found["zero_agreement"]["value"], found["agreeing_short"]["value"]) == (1.0, None)


def test_only_some_layers(tmp_path: Path) -> None:
    """Layers 0 and 2 of 4: upper layers and the bottom third are counted in the model, not in what was mined."""
    hf, tokenizer = build("gpt2", n_layer=4), byte_tokenizer(bos_token=END)
    model, other = load_model(hf, tokenizer=tokenizer), odd_text(15, seed=1)
    out = mined_text(model, tmp_path, odd_text(20), other=other, layers="0,2", triggers=5)
    write_random_patterns(out)
    assert_all(out, mined_tables(out), near=1e-9)
    match = answer(out, "refinement_match").filter(name="match_last")
    assert match.select("layer", "value").rows() == [(None, None)]  # layer 3 was not mined


def test_a_changed_row_is_found(tmp_path: Path) -> None:
    """The control of this file: what one row says differently changes the reference's answer."""
    hf, tokenizer = build("gpt2-relu", n_layer=3), byte_tokenizer(bos_token=END)
    out = mined_text(load_model(hf, tokenizer=tokenizer), tmp_path, odd_text(20), other=odd_text(15, seed=1))
    write_random_patterns(out)
    tables = mined_tables(out)
    tables.values[1][3] = tables.values[1][3] | {"target_rank": 270}
    with pytest.raises(AssertionError, match="value_rank, layer 1"):
        assert_answers(out, "value_rank", value_rank(tables))
    tables.predictions[4] = tables.predictions[4] | {"votes_ffn": 0 if tables.predictions[4]["votes_ffn"] else 1}
    with pytest.raises(AssertionError, match="layer_composition, layer 1"):
        assert_answers(out, "layer_composition", QUESTIONS["layer_composition"](tables))
