"""What a question says when the atlas has not what it needs."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mnemoscope.errors import AtlasDamaged, AtlasNotFound, AtlasUnfinished, OptionError
from mnemoscope.foundation.intervals import DRAWS, NOTHING, Estimate, ends
from mnemoscope.questions import QUESTIONS, answer, load_question
from mnemoscope.questions.sources import (
    DOCUMENTS,
    Predictions,
    ResampledValue,
    contrast,
    literal_values,
    may_be_least,
    model_layers,
    plan_seed,
    projection,
    tokens_spoken_of,
    values,
)
from support.handbuilt_answers import Value, build_answers
from support.handbuilt_atlas import build_atlas

ON_PREFIXES = [question for question in QUESTIONS if load_question(question).interval == DOCUMENTS]
MINE = "`mnemoscope mine gpt2 'my text.txt' --out"


def test_a_part_answers_nothing(tmp_path: Path) -> None:
    part = build_atlas(tmp_path / "p", part=(2, 3))
    for question in QUESTIONS:
        with pytest.raises(AtlasUnfinished, match="is part 2 of 3"):
            answer(part, question)


def test_missing_patterns_are_named_with_the_command(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []}, patterns=None)
    for question in ("key_patterns", "key_removals", "layer_activity"):
        with pytest.raises(AtlasUnfinished, match=r"no table patterns; .*`mnemoscope analyze .* --patterns`"):
            answer(atlas, question)


def test_missing_tables_are_named_with_the_command(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []}, removals=None, prefixes=None)
    with pytest.raises(AtlasUnfinished) as caught:
        answer(atlas, "key_removals")
    assert str(caught.value) == f"{tmp_path} has no table removals; make it with {MINE} {tmp_path} --seed 7 --force`"
    for question in ON_PREFIXES:
        with pytest.raises(AtlasUnfinished, match="has no table predictions"):
            answer(atlas, question)


def test_a_table_that_was_deleted_is_named_with_the_command(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []})
    (tmp_path / "removals.parquet").unlink()
    with pytest.raises(AtlasDamaged) as caught:
        answer(atlas, "key_removals")
    assert str(caught.value) == (
        f"{tmp_path}/removals.parquet is missing; restore it, or make it with {MINE} {tmp_path} --seed 7 --force`"
    )


@pytest.mark.parametrize("none", [0, "0"])  # removals may be `all`, so the plan may hold words
def test_tables_that_were_switched_off(none: int | str, tmp_path: Path) -> None:
    plan = {"model": "gpt2", "corpus": "my text.txt", "removals": none, "prefixes": none}
    atlas = build_answers(tmp_path, triggers={0: []}, plan=plan)
    empty = {"key_removals": "removals \\(removals=0"} | dict.fromkeys(ON_PREFIXES, "predictions \\(prefixes=0")
    for question, table in empty.items():
        with pytest.raises(AtlasUnfinished, match=f"has an empty table {table}"):
            answer(atlas, question)


def test_an_unknown_question_lists_the_ten(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []})
    with pytest.raises(OptionError, match=f"'value_agrement' is .* {', '.join(QUESTIONS)}"):
        answer(atlas, "value_agrement")


def test_no_atlas(tmp_path: Path) -> None:
    with pytest.raises(AtlasNotFound):
        answer(tmp_path, "value_rank")


def test_predictions_of_prefixes_that_are_not_listed(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, prefixes=[(0, 1, 6, 7)], predictions={(0, 0): {}, (1, 0): {}})
    with pytest.raises(AtlasDamaged, match="predictions names prefixes or layers"):
        answer(atlas, "refinement_match")


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [("active", -1, "-1"), ("effective", float("nan"), "nan"), ("final_top", -1, "-1"), ("top_share", math.inf, "inf")],
)
def test_predictions_that_were_never_filled(column: str, value: float, shown: str, tmp_path: Path) -> None:
    """As a run leaves them that was stopped, and never went on."""
    prefixes = [(0, 1, 6, -1 if column == "final_top" else 6), (1, 1, 6, 7)]
    row = {} if column == "final_top" else {column: value}
    atlas = build_answers(tmp_path, prefixes=prefixes, predictions={(0, 0): row, (1, 0): {}}, triggers={0: []})
    with pytest.raises(AtlasDamaged, match=f"{column} holds {shown} in 1 of its rows, which no run writes"):
        answer(atlas, ON_PREFIXES[0])


def test_removals_that_were_never_filled(tmp_path: Path) -> None:
    rows = [(0, 0, 0, "last", 2.0, 1.0), (0, 0, 0, "first", 2.0, math.nan), (0, 0, 0, "random", 2.0, 1.0)]
    atlas = build_answers(tmp_path, triggers={0: [(0, 6)]}, removals=rows)
    with pytest.raises(AtlasDamaged, match="table removals: removed_coefficient holds nan in 1 of its rows"):
        answer(atlas, "key_removals")


def test_what_an_atlas_does_not_say_is_as_usual(tmp_path: Path) -> None:
    """definitions.md section 2: values and votes are read by `gain`, streams by `lens`; without a seed it is 0."""
    plain = build_answers(tmp_path / "plain", triggers={0: []}, plan={"model": "m"})
    assert projection(plain, "streams", "values", "votes") == {"streams": "lens", "values": "gain", "votes": "gain"}
    assert (projection(plain, "votes"), plan_seed(plain)) == ({"votes": "gain"}, 0)
    said = {"model_layers": 5, "projections": {"values": "raw"}, "plan": {"seed": 3}}
    other = build_answers(tmp_path / "other", triggers={0: []}, **said)
    assert projection(other, "values", "streams") == {"values": "raw", "streams": "lens"}
    assert (plan_seed(other), model_layers(other)) == (3, 5)


def test_next_tokens_are_those_of_the_best_positive_triggers(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: [(0, 6), (0, None), (0, 8), (2, 9)]}, lowest={0: [(0, 1), (1, 1)]})
    assert tokens_spoken_of(atlas, 0).rows() == [(0, 6), (0, None), (0, 8), (2, 9)]
    assert tokens_spoken_of(atlas, 0, best=2).rows() == [(0, 6), (0, None), (2, 9)]


def test_a_value_agrees_where_it_says_its_target(tmp_path: Path) -> None:
    rows: list[Value] = [(6, 6, 0, 0.5, 1.0, -1.0), (6, None, None, 0.25, 2.0, None, 0.125), (7, 6, 3, 0.5, 1.0, -2.0)]
    found = values(build_answers(tmp_path, values={3: rows[:1], 1: rows}))
    assert found.select("layer", "memory", "top", "target", "agrees").rows() == [
        (1, 0, 6, 6, True),
        (1, 1, 6, None, None),
        (1, 2, 7, 6, False),
        (3, 0, 6, 6, True),
    ]
    second = {"layer": 1, "memory": 1, "top": 6, "max_probability": 0.25, "value_norm": 2.0}
    second |= {"working_probability": 0.125, "target": None, "target_rank": None, "log_probability": None}
    formula = {"top": 6, "max_probability": 0.25, "target": None, "target_rank": None}  # as built, the same as ours
    second |= {f"literal_{name}": value for name, value in formula.items()}
    assert found.row(1, named=True) == second | {"agrees": None}
    swapped = found.with_columns(literal_top=pl.lit(7), literal_target_rank=pl.lit(9))
    read = literal_values(swapped)
    assert read["agrees"].to_list() == [False, None, False, False]
    assert read["target_rank"].to_list() == [9] * 4
    assert literal_values(found.with_columns(literal_top=pl.lit(None, pl.Int32))).is_empty()


# Three prefixes of two documents, in layers 2 and 5; the second document has one prefix.
PREFIXES = [(4, 1, 6, 7), (9, 1, 6, 7), (4, 2, 6, 8)]


def predictions_of(directory: Path, columns: dict[str, dict[int, tuple[float | None, ...]]]) -> Predictions:
    """Each column by layer and prefix."""
    rows: dict[tuple[int, int], dict[str, float | None]] = {}
    for name, layers in columns.items():
        for layer, own in layers.items():
            for prefix, number in enumerate(own):
                rows.setdefault((prefix, layer), {})[name] = number
    return Predictions(build_answers(directory, prefixes=PREFIXES, predictions=rows), beside="attention")


@pytest.fixture
def rows(tmp_path: Path) -> Predictions:
    logits = {2: (2, 6, None), 5: (None, 3, 1)}
    return predictions_of(tmp_path, {"active": {2: (1, 3, 5), 5: (0, 8, 4)}, "attention_logit": logits})


def said(found: Mapping[int | None, ResampledValue]) -> dict[int | None, tuple[float | None, int]]:
    return {layer: (one.value, one.count) for layer, one in found.items()}


def drawn(one: ResampledValue) -> set[float]:
    return {round(float(draw), 9) for draw in one.draws}


def test_a_mean_is_over_the_rows_asked_and_resamples_documents(rows: Predictions) -> None:
    assert said(rows.share(rows["active"])) == {2: (3, 3), 5: (4, 3), None: (21 / 6, 6)}
    known = rows["active"] > 3
    found = rows.share(rows["active"], known)
    assert said(found) == {2: (5, 1), 5: (6, 2), None: (17 / 3, 3)}
    # Of document 4 twice, of 9 twice, of both: what is not asked adds nothing.
    assert (drawn(rows.share(rows["active"])[2]), drawn(found[5])) == ({3.0, round(9 / 3, 9)}, {4.0, 8.0, 6.0})
    assert (drawn(found[None]), found[5].low, found[5].high) == ({4.5, 8.0, round(17 / 3, 9)}, 4.0, 8.0)
    assert rows.share(rows["active"], rows["active"] > 9)[2].value is None


def test_a_ratio_has_the_number_below_once_for_each_prefix(rows: Predictions) -> None:
    above, below = rows["attention_logit"], np.tile([4.0, 2.0, 1.0], 2)
    known = np.isfinite(above)
    found = rows.ratio(above, below, known)
    # Layer 2: 8 over 4 + 2; layer 5: 4 over 2 + 1; all: 12 over 4 + 2 + 1, the second prefix once.
    assert said(found) == {2: (8 / 6, 2), 5: (4 / 3, 2), None: (12 / 7, 3)}
    # Document 4 has prefixes 0 and 2, document 9 has prefix 1.
    assert (drawn(found[2]), drawn(found[None])) == ({0.5, 3.0, round(8 / 6, 9)}, {0.6, 4.5, round(12 / 7, 9)})


def test_a_ratio_to_a_negative_sum_is_one_too(rows: Predictions) -> None:
    """Below are -4, 2 and 1: together -1, of document 4 -3; of document 9 alone 2, which does not count."""
    found = rows.ratio(rows["active"], np.tile([-4.0, 2.0, 1.0], 2), np.ones(6, bool))
    assert said(found) == {2: (-9, 3), 5: (-12, 3), None: (-21, 3)}
    kept = found[2].draws[~np.isnan(found[2].draws)]
    assert {round(float(draw), 9) for draw in kept} == {-9.0, -2.0}
    assert len(kept) < DRAWS
    nothing = rows.ratio(rows["active"], np.zeros(6), np.ones(6, bool))
    assert said(nothing) == {2: (None, 3), 5: (None, 3), None: (None, 3)}


def test_without_a_prefix_there_is_no_document(tmp_path: Path) -> None:
    assert Predictions(build_answers(tmp_path, triggers={0: []})).documents() == NOTHING


def test_predictions_of_a_layer_that_was_not_mined_are_damage(tmp_path: Path) -> None:
    rows: dict[tuple[int, int], dict[str, float | None]] = {(0, 0): {}, (0, 1): {}}
    assert Predictions(build_answers(tmp_path / "a", prefixes=PREFIXES[:1], predictions=rows)).layers == (0, 1)
    atlas = build_answers(tmp_path / "b", prefixes=PREFIXES[:1], predictions=rows, layers=[0])
    with pytest.raises(AtlasDamaged, match="predictions names prefixes or layers that the atlas does not have"):
        Predictions(atlas)


def resampled(value: float, *draws: float) -> ResampledValue:
    return ResampledValue(value, 5, *ends(np.array(draws)), draws=np.array(draws))


def test_a_contrast_takes_every_resample_of_all_its_terms() -> None:
    one, other = resampled(0.5, 0.25, 0.75, 0.5), resampled(0.125, 0.0, 0.5, 0.125)
    found = contrast((2, one), (-1, other))
    assert (found, contrast((1, one), (-1, replace(other, value=None)))) == (Estimate(0.875, 5, 0.5, 1.0), NOTHING)
    # What differs by rounding alone is the same.
    sums = resampled(0.1 + 0.2, 0.1 + 0.2), resampled(0.3, 0.3)
    assert contrast((1, sums[0]), (-1, sums[1])) == Estimate(0.0, 5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("lows", "candidates"),
    [
        ((0.1,), [1]),
        ((0.0,), [1, 2]),
        ((-0.1,), [1, 2]),
        # One of two others: widened by the quantile of 1 - 0.025 / 2 over that of 0.975, 1.1436: 0.1256 becomes 0.
        ((0.12, 0.13), [1, 2]),
        ((0.13, 0.12), [1, 3]),
        ((0.13, 0.13), [1]),
    ],
)
def test_layers_that_may_be_the_least(lows: tuple[float, ...], candidates: list[int]) -> None:
    """Layer 1 is 0 in every resample, the others are 1, with ends so far down."""
    estimates: dict[int | None, ResampledValue] = {0: replace(resampled(1.0, 1.0), value=None)}
    estimates[1] = resampled(0.0, 0.0, 0.0, 0.0)
    estimates |= {layer: resampled(1.0, low, 1.0, 1.5) for layer, low in enumerate(lows, 2)}
    estimates[None] = resampled(-1.0, -1.0, -1.0, -1.0)
    assert may_be_least(estimates) == candidates
