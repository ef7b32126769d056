"""The tail of the hypergeometric distribution, against whole numbers and against drawing."""

from fractions import Fraction
from math import comb, log10

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.patterns.significance import lift, log10_tail


def exact(count: int, tried: int, held: int, background: int) -> Fraction:
    """The same in whole numbers: `held + count` are drawn from `background + tried`, `tried` of which are marked."""
    ways = sum(comb(tried, j) * comb(background, held + count - j) for j in range(count, min(tried, held + count) + 1))
    return Fraction(ways, comb(background + tried, held + count))


@given(st.data())
def test_it_equals_whole_numbers(data: st.DataObject) -> None:
    tried = data.draw(st.integers(1, 25))
    background = data.draw(st.sampled_from([0, 1, 7, 400, 20_000]))
    count, held = data.draw(st.integers(0, tried)), data.draw(st.integers(0, background))
    expected = log10(exact(count, tried, held, background))
    assert log10_tail(count, tried, held, float(background)) == pytest.approx(expected, abs=1e-7)


def test_a_background_may_be_a_fraction_or_less_than_what_it_holds() -> None:
    assert log10_tail(3, 25, 4, 101.0) < log10_tail(3, 25, 4, 100.5) < log10_tail(3, 25, 4, 100.0)
    assert log10_tail(3, 25, 4, 2.5) == log10_tail(3, 25, 4, 4.0)


def test_drawn_at_random_it_is_at_most_as_often_small_as_it_says() -> None:
    """Random triggers and background from one urn; the test must not be too eager at any level."""
    random = np.random.default_rng(0)
    held = random.binomial(2_000, 0.05, size=4_000)
    counts = random.binomial(25, 0.05, size=4_000)
    found = np.array([log10_tail(int(k), 25, int(h), 2_000.0) for k, h in zip(counts, held, strict=True)])
    for level in (0.1, 0.01):
        assert (found <= log10(level)).mean() <= level + 3 * (level / 4_000) ** 0.5


def test_lift_adds_one_to_the_background() -> None:
    assert lift(5, 20, 9, 99.0) == pytest.approx(0.25 / 0.1)
    assert lift(3, 3, 0, 0.0) == 1.0
