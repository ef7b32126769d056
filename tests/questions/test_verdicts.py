"""What an interval says about a claim, at its ends; the claims themselves are in test_rules.py."""

import math

import pytest

from mnemoscope.questions.question import Row
from mnemoscope.questions.verdicts import (
    above,
    at_least,
    at_most,
    between,
    correct_intervals,
    difference,
    each_layer_between,
    every,
    is_above,
    is_between,
    of_few_documents,
)
from questions.hand_answers import answered


def row(low: float | None, high: float | None, value: float = 0.5, layer: int | None = 3) -> Row:
    return Row(value=value, count=7, low=low, high=high, layer=layer, name="match", own={"a": 1}, form="share")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.2, 0.4, "yes"), (0.3, 0.3, "yes"), (0.1, 0.3, "undecided"), (0.3, 0.5, "undecided"),
        (0.1, 0.5, "undecided"), (0.0, 0.2, "undecided"), (0.4, 0.9, "undecided"), (0.0, 0.19, "no"),
        (0.41, 0.9, "no"), (None, 0.3, "undecided"), (0.3, None, "undecided"),
    ],
)  # fmt: skip
def test_between_with_both_ends(low: float | None, high: float | None, verdict: str) -> None:
    assert is_between(row(low, high), least=0.2, most=0.4) == verdict
    assert between(0.2, 0.4)(answered("refinement_match", []), row(low, high)) == verdict


@pytest.mark.parametrize(
    ("low", "high", "more", "least", "most"),
    [
        (0.3, 0.9, "undecided", "yes", "undecided"), (0.31, 0.9, "yes", "yes", "no"),
        (0.1, 0.3, "no", "undecided", "yes"), (0.1, 0.29, "no", "no", "yes"),
        (0.1, 0.9, "undecided", "undecided", "undecided"), (0.3, 0.3, "no", "yes", "yes"),
        (None, 0.1, "undecided", "undecided", "undecided"), (0.9, None, "undecided", "undecided", "undecided"),
    ],
)  # fmt: skip
def test_above_a_bound_at_it_and_below(low: float | None, high: float | None, more: str, least: str, most: str) -> None:
    answer = answered("refinement_match", [])
    assert is_above(row(low, high), 0.3) == above(0.3)(answer, row(low, high)) == more
    assert at_least(0.3)(answer, row(low, high)) == least
    assert at_most(0.3)(answer, row(low, high)) == most


def test_all_must_say_yes_and_one_no_is_enough() -> None:
    assert every([]) is None
    assert every(["yes", "yes"]) == "yes"
    assert every(["yes", "undecided"]) == "undecided"
    assert every(iter(["undecided", "no", "yes"])) == "no"


# Bonferroni for two and for four: the quantiles of 1 - 0.025 / 2 and 1 - 0.025 / 4 over that of 0.975, from a table.
TWO, FOUR = 2.241402728 / 1.959963985, 2.497705474 / 1.959963985


def test_intervals_that_hold_at_once_are_wider() -> None:
    rows = [row(0.4, 0.8), row(None, None)]
    for looks, stretch in ((None, TWO), (4, FOUR), (1, 1.0)):
        found = correct_intervals(rows, looks)
        assert (found[0].low, found[0].high) == (pytest.approx(0.5 - 0.1 * stretch), pytest.approx(0.5 + 0.3 * stretch))
        assert found[1] == rows[1]


def test_every_layer_is_asked_after_the_correction_and_the_total_is_not() -> None:
    """Two layers: 0.1 beside the number become 0.1 times TWO."""
    def asked(most: float) -> str | None:
        lines = [(0, "match", 0.5, 0.4, 0.6), (4, "match", 0.3, 0.25, 0.35), (None, "match", 9.0, 9.0, 9.0)]
        return each_layer_between("match", 0.0, most)(answered("refinement_match", lines), row(0.0, 0.0))

    assert asked(0.5 + 0.1 * TWO + 1e-9) == "yes"
    assert asked(0.5 + 0.1 * TWO - 1e-6) == "undecided"
    assert asked(0.2) == "no"
    assert each_layer_between("match", 0, 1)(answered("refinement_match", []), row(0.0, 0.0)) is None


def test_a_difference_of_two_numbers_and_of_their_intervals() -> None:
    """0.75 less 0.25: 3 and 4 hundredths off to the lower side are 5 off together, 5 and 12 to the upper are 13."""
    found = difference(row(0.72, 0.80, value=0.75), row(0.13, 0.29, value=0.25))
    assert (found.value, found.count, found.layer, found.own) == (0.5, 7, None, {})
    assert found.low == pytest.approx(0.5 - 0.05)
    assert found.high == pytest.approx(0.5 + 0.13)
    for unknown in (row(None, 0.3), row(0.2, None)):
        for one, other in ((unknown, row(0.4, 0.6)), (row(0.4, 0.6), unknown)):
            assert (difference(one, other).low, difference(one, other).high) == (None, None)


def test_few_documents_are_fewer_than_ten() -> None:
    assert of_few_documents(answered("refinement_match", [], documents=9))
    assert not of_few_documents(answered("refinement_match", [], documents=10))
    unknown = answered("refinement_match", [(None, "documents", math.nan, None, None)], documents=10)
    assert not of_few_documents(unknown)
    assert not of_few_documents(answered("value_rank", []))
