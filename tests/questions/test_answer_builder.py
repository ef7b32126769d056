"""How rows become an answer, and what is said of all layers at once; every number is worked out beside it."""

import math

import polars as pl
import pytest

from mnemoscope.foundation.intervals import NOTHING, Estimate
from mnemoscope.questions.answer_builder import AnswerBuilder, least_layer, share_above
from mnemoscope.questions.question import EMPTY, Number, Paper, Question

NUMBERS = (Number("one", "share"), Number("two", "number"), Number("other_two", "number"))
WORDS = {"title": "what is asked", "nothing": "nothing", "interval": "none", "main": "one", "headline": ("one",)}
PAPER = Paper(figure="Figure 0", section="0", question="What?")
ASKED = Question("asked", paper=PAPER, numbers=NUMBERS, layer_page=(), **WORDS)  # type: ignore[arg-type]
HALF = Estimate(0.5, 4, 0.25, 0.75)


def test_rows_stand_layer_by_layer_as_they_were_added_and_totals_last() -> None:
    found = AnswerBuilder(ASKED, {"where": pl.Int16, "how": pl.String})
    found.add(None, "one", HALF, where=3)
    found.add(2, "two", Estimate(math.inf, 7, -math.inf, math.nan), how="far")
    found.add(1, "one", Estimate(None, 0))
    found.add_named(1, {"two": HALF}, prefix="other_")
    found.add_layers("two", {0: HALF, None: NOTHING})
    found.add_layers("other_two", {0: HALF, None: NOTHING}, total=False)
    frame = found.frame()
    assert frame.schema == {**EMPTY.schema, "where": pl.Int16, "how": pl.String}
    assert frame.rows() == [
        (2, "two", None, 7, None, None, None, "far"),  # what is not finite is not known
        (1, "one", None, 0, None, None, None, None),
        (1, "other_two", 0.5, 4, 0.25, 0.75, None, None),
        (0, "two", 0.5, 4, 0.25, 0.75, None, None),
        (0, "other_two", 0.5, 4, 0.25, 0.75, None, None),
        (None, "one", 0.5, 4, 0.25, 0.75, 3, None),
        (None, "two", None, 0, None, None, None, None),
    ]
    assert AnswerBuilder(ASKED).frame().schema == EMPTY.schema


def test_only_declared_numbers_and_columns_are_taken() -> None:
    found = AnswerBuilder(ASKED, {"where": pl.Int16})
    with pytest.raises(ValueError, match="three is not a number that the question declares"):
        found.add(0, "three", HALF)
    with pytest.raises(ValueError, match=r"one: \['here', 'there'\] are not columns of this answer"):
        found.add(0, "one", HALF, there=1, here=1, where=1)
    assert found.frame().is_empty()


def test_the_least_layer_is_the_lower_one_of_equals_and_never_the_total() -> None:
    low = Estimate(0.1, 1)
    assert least_layer({5: low, 3: low, 1: HALF, 0: NOTHING, None: Estimate(0.0, 9)}) == (3, low)
    assert least_layer({0: NOTHING, None: low}) == (None, NOTHING)


# Bonferroni for two: the quantile of 1 - 0.025 / 2 over that of 0.975, from a table.
STRETCH = 2.241402728 / 1.959963985
EDGE = 0.1 / STRETCH


@pytest.mark.parametrize(
    ("first", "low", "high"),
    [
        (Estimate(0.6, 1, 0.6 - 0.99 * EDGE, 0.9), 0.5, 0.5),  # clearly above, once corrected
        (Estimate(0.6, 1, 0.6 - 1.01 * EDGE, 0.9), 0.0, 0.5),  # above, but not clearly
        (Estimate(0.4, 1, 0.1, 0.4 + 0.99 * EDGE), 0.0, 0.0),  # clearly below
        (Estimate(0.4, 1, 0.1, 0.4 + 1.01 * EDGE), 0.0, 0.5),
        (Estimate(0.5, 1, 0.5, 0.5), 0.0, 0.0),  # at the bound is not above it
        (Estimate(0.6, 1), 0.0, 0.5),
    ],
)
def test_layers_above_a_bound(first: Estimate, low: float, high: float) -> None:
    """Beside a layer that is clearly below a half: two looks."""
    found = share_above([first, Estimate(0.1, 1, 0.1, 0.1)], 0.5)
    assert found == Estimate(0.5 if first.value > 0.5 else 0.0, 2, low, high)


def test_of_no_layer_nothing_is_said() -> None:
    assert share_above([], 0.5) == NOTHING
    # A layer without a number is not above, and not surely below either.
    assert share_above([NOTHING, Estimate(0.9, 1, 0.8, 1.0)], 0.5) == Estimate(0.5, 2, 0.5, 1.0)
