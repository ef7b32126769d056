"""Krippendorff's alpha against published examples, the definition over all pairs, and cases without an answer."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.annotate.campaigns.results import alpha
from mnemoscope.foundation.intervals import NOTHING


def units(*people: str) -> list[list[list[str]]]:
    """Each person's values as a string, a dot where there is none; every unit is a cluster of its own."""
    return [[[value for value in column if value != "."]] for column in zip(*people, strict=True)]


@pytest.mark.parametrize(
    ("people", "published"),
    [
        # Krippendorff, Computing Krippendorff's Alpha-Reliability (2011): examples A, B and C, nominal.
        (("0100000010", "1110010000"), 0.095),
        (("aabbdcccedda", "babbbcccedd" + "d"), 0.692),
        (("1233214120..".replace("0", "."), "1233224125.3", ".33323422" + "51.", "12332441251."), 0.743),
    ],
)
def test_published_examples(people: tuple[str, ...], published: float) -> None:
    value = alpha(units(*people)).value
    assert value is not None
    assert round(value, 3) == published


def by_pairs(clusters: list[list[list[int]]]) -> float | None:
    """The definition: disagreeing pairs within units, each unit's weighed by 1 / (m - 1), over those of all values."""
    paired = [unit for cluster in clusters for unit in cluster if len(unit) > 1]
    values = [value for unit in paired for value in unit]
    observed = sum(sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in paired)
    expected = sum(a != b for a, b in permutations(values, 2))
    return 1 - (len(values) - 1) * observed / expected if expected else None


@given(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=4), max_size=6))
def test_alpha_is_what_all_pairs_say(clusters: list[list[list[int]]]) -> None:
    found, expected = alpha(clusters), by_pairs(clusters)
    if expected is None:
        assert found == NOTHING
    else:
        assert found.value == pytest.approx(expected)
        assert found.count == sum(len(unit) for cluster in clusters for unit in cluster if len(unit) > 1)
        if found.low is not None and found.high is not None:
            assert found.low <= expected + 1e-9 <= found.high + 2e-9 <= 1 + 3e-9


def test_perfect_none_and_opposite() -> None:
    perfect = alpha(units("aabb", "aabb"))
    assert (perfect.value, perfect.low, perfect.high) == (1.0, 1.0, 1.0)
    assert alpha(units("aaaa", "aaaa")) == NOTHING, "where nothing varies, nothing is known"
    assert alpha(units("ab..", "..ab")) == NOTHING, "nobody judged what another did"
    assert alpha([]) == NOTHING
    # Two units: o_ab = 4 of 4 disagree, and by chance 4 * 4 - 2 * 4 = 8 of 12 pairs: 1 - 1 / (8 / 12).
    assert alpha(units("ab", "ba")).value == pytest.approx(-0.5)


def test_the_interval_is_seeded_and_takes_clusters_whole() -> None:
    """Forty units that agree as ten: when four times as many say the same, the interval must not get narrower."""
    ten = units("aabbabbaab", "abbbabbaaa")
    first, again, other = alpha(ten, seed=3), alpha(ten, seed=3), alpha(ten, seed=4)
    assert (first, first.value) == (again, other.value)
    assert first.high - first.low > 0.3
    four = alpha([cluster * 4 for cluster in ten], seed=3)
    apart = alpha([[unit] for cluster in ten for unit in cluster * 4], seed=3)
    width = {name: one.high - one.low for name, one in (("four", four), ("apart", apart)) if one.high and one.low}
    assert width["four"] > 1.5 * width["apart"]
