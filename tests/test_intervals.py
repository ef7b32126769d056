"""Intervals against their definitions, by hand and by simulation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mnemoscope.foundation.intervals import (
    DRAWS,
    LEVELS,
    NOTHING,
    Estimate,
    Resamples,
    Z,
    clustered_share,
    ends,
    exact_share,
    mean,
    mean_share,
    order_statistic,
    share,
    widen,
    wilson,
)


@given(st.integers(1, 5000), st.floats(0, 1))
def test_wilson_holds_the_shares_that_the_cases_do_not_speak_against(count: int, part: float) -> None:
    """The closed definition: at either end, the share seen is Z standard deviations of that end away."""
    hits = round(part * count)
    seen = hits / count
    low, high = wilson(seen, count)
    assert 0 <= low <= seen <= high <= 1
    for end in (low, high):
        if end not in (0.0, 1.0):
            assert abs(seen - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / count), rel=1e-6, abs=1e-9)
    assert (low == 0, high == 1) == (hits == 0, hits == count)


def test_wilson_by_hand() -> None:
    """8 of 10, as in the textbooks: 0.490 to 0.943."""
    found = share(8, 10)
    assert (found.value, found.count, found.low) == (0.8, 10, pytest.approx(0.4902, abs=1e-4))
    assert found.high == pytest.approx(0.9433, abs=1e-4)


def test_an_interval_for_many_looks_is_stretched_on_either_side() -> None:
    """For two looks by 2.2414 / 1.9600, the normal quantiles of 1 - 0.0125 and 0.975: 1.1436."""
    found = widen(Estimate(0.5, 10, 0.4, 0.8), 2)
    assert (found.value, found.count, found.low) == (0.5, 10, pytest.approx(0.5 - 0.11436, abs=1e-5))
    assert found.high == pytest.approx(0.5 + 3 * 0.11436, abs=3e-5)


@pytest.mark.parametrize(
    ("found", "looks"), [(Estimate(0.5, 10, 0.4, 0.8), 1), (Estimate(0.5, 1), 7), (NOTHING, 7), (share(1, 9), 0)]
)
def test_one_look_and_no_interval_are_left_as_they_are(found: Estimate, looks: int) -> None:
    assert widen(found, looks) == found


def test_the_exact_interval_by_hand() -> None:
    """0 of n: high is 1 - 0.025^(1/n). 1 of 2: 1 - (1 - low)^2 = 0.025, high^2 = 0.975. 8 of 10: textbooks."""
    none, every = exact_share(0, 10), exact_share(10, 10)
    assert (none.value, none.count, none.low, none.high) == (0.0, 10, 0.0, pytest.approx(1 - 0.025**0.1, rel=1e-9))
    assert (every.value, every.high, every.low) == (1.0, 1.0, pytest.approx(0.025**0.1, rel=1e-9))
    half = exact_share(1, 2)
    assert half.low == pytest.approx(1 - math.sqrt(0.975), rel=1e-9)
    assert half.high == pytest.approx(math.sqrt(0.975), rel=1e-9)
    most = exact_share(8, 10)
    assert (most.low, most.high) == (pytest.approx(0.4439, abs=1e-4), pytest.approx(0.9748, abs=1e-4))
    assert exact_share(0, 10, looks=5).high == pytest.approx(1 - 0.005**0.1, rel=1e-9)
    assert exact_share(0, 0) == NOTHING


@pytest.mark.parametrize("hits", [1, 3, 7, 8, 12, 14])
def test_at_the_ends_of_the_exact_interval_as_many_hits_are_as_rare_as_said(hits: int) -> None:
    """Of 15: at the low end as many or more, at the high end as many or fewer, with probability 2.5 % (summed here)."""
    found = exact_share(hits, 15)
    assert found.low is not None
    assert found.high is not None

    def likely(part: float, wanted: range) -> float:
        return sum(math.comb(15, k) * part**k * (1 - part) ** (15 - k) for k in wanted)

    assert likely(found.low, range(hits, 16)) == pytest.approx(0.025, rel=1e-6)
    assert likely(found.high, range(hits + 1)) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize("found", [share(0, 0), clustered_share([], []), mean([]), order_statistic([], 0.5)])
def test_of_nothing_there_is_no_number(found: Estimate) -> None:
    assert found == NOTHING
    assert np.isnan(Resamples(2, 0).quantile_draws([], np.zeros(0, int), [0.5])[0]).tolist() == [True] * DRAWS
    assert Resamples(0, 0).sums(np.zeros((0, 2))).tolist() == [[0.0, 0.0]] * DRAWS


def test_the_mean_of_shares_ends_within_them() -> None:
    """Of 0.5 and nine zeros the mean is 0.05 and its standard error 0.05, so the plain interval ends below zero; on the
    scale of logits the margin is 1.96 x 0.05 / (0.05 x 0.95), around log(0.05 / 0.95).
    """
    values = [0.5] + [0.0] * 9
    plain, found = mean(values), mean_share(values)
    assert plain.low < 0
    ends = [1 / (1 + math.exp(-(math.log(0.05 / 0.95) + sign * Z * 0.05 / 0.0475))) for sign in (-1, 1)]
    assert (found.value, found.count, [found.low, found.high]) == (plain.value, plain.count, pytest.approx(ends))


@given(st.lists(st.floats(0, 1), min_size=2))
def test_every_mean_of_shares_lies_in_its_interval(values: list[float]) -> None:
    found = mean_share(values)
    assert -1e-12 <= found.low <= found.value <= found.high <= 1 + 1e-12


@given(st.lists(st.booleans(), min_size=3, max_size=60), st.integers(1, 20))
def test_clusters_that_agree_within_count_once(hits: list[bool], size: int) -> None:
    """A cluster of equal cases tells as much as one case: (M - 1) of them, the variance having M - 1 in it."""
    found = clustered_share([size * hit for hit in hits], [size] * len(hits))
    value = sum(hits) / len(hits)
    assert (found.value, found.count) == (pytest.approx(value), size * len(hits))
    expected = wilson(value, len(hits) - 1 if 0 < sum(hits) < len(hits) else len(hits))
    assert (found.low, found.high) == pytest.approx(expected)


def test_clusters_of_equal_shares_count_every_case() -> None:
    assert clustered_share([1, 2, 3], [2, 4, 6]) == share(6, 12)
    assert clustered_share([1, 0], [2, 0]) == Estimate(0.5, 2, *wilson(0.5, 1))  # one cluster, and an empty one


def test_the_mean_by_hand() -> None:
    """1, 2, 3: standard deviation 1, standard error 1 / sqrt(3)."""
    found = mean([1, 2, 3])
    assert (found.value, found.count, found.low) == (2, 3, pytest.approx(2 - Z / math.sqrt(3)))
    assert (found.high, mean([4.0])) == (pytest.approx(2 + Z / math.sqrt(3)), Estimate(4.0, 1))
    wide = mean([10, 12, 14])
    assert wide.low == pytest.approx(12 - 2 * Z / math.sqrt(3))
    assert wide.high == pytest.approx(12 + 2 * Z / math.sqrt(3))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=80), st.sampled_from([0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]))
def test_order_statistics_are_those_of_numpy(values: list[int], level: float) -> None:
    found = order_statistic(sorted(values), level)
    assert (found.value, found.count) == (np.quantile(values, level, method="inverted_cdf"), len(values))
    if level in (0.0, 1.0):
        assert (found.low, found.high) == (None, None)
    else:
        assert found.low <= found.value <= found.high


def test_the_interval_of_a_median_reaches_from_one_value_to_another() -> None:
    """Of 100 values Wilson puts the median between 40.4 % and 59.6 %, so between the 41st and the 60th."""
    assert order_statistic(np.arange(1, 101), 0.5) == Estimate(50.0, 100, 41.0, 60.0)


def ratio(numerators: NDArray[np.float64], denominators: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    low, high = ends(Resamples(len(numerators), seed).ratio_draws(numerators[:, None], denominators[:, None])[:, 0])
    assert low is not None
    assert high is not None
    return low, high


@given(st.floats(0.001, 1000), st.integers(2, 40))
def test_the_bootstrap_of_a_constant_is_that_constant(value: float, clusters: int) -> None:
    cases = np.arange(1.0, clusters + 1)
    low, high = ratio(value * cases, cases)
    assert (low, high) == (pytest.approx(value, rel=1e-9), pytest.approx(value, rel=1e-9))


@pytest.mark.parametrize(
    "interval",
    [
        lambda hits, cases: ratio(hits, cases),
        lambda hits, cases: (clustered_share(hits, cases).low, clustered_share(hits, cases).high),
    ],
    ids=["bootstrap", "wilson"],
)
def test_intervals_over_clusters_hold_the_truth(interval: Callable[..., tuple[float, float]]) -> None:
    """Documents of 1 to 9 prefixes that tend to agree, a share of 0.3: 95 of 100 intervals are to hold it.

    An interval that took the prefixes as independent would hold it about 70 times.
    """
    draw = np.random.default_rng(1)
    held = []
    for _ in range(200):
        cases = draw.integers(1, 10, 80).astype(np.float64)
        tendency = draw.beta(0.3, 0.7, 80)
        hits = draw.binomial(cases.astype(int), tendency).astype(np.float64)
        low, high = interval(hits, cases)
        held.append(low <= 0.3 <= high)
    assert 0.9 <= np.mean(held) <= 0.99


def test_a_seed_decides_the_resamples() -> None:
    hits, cases = np.arange(30.0), np.full(30, 40.0)
    assert ratio(hits, cases, seed=3) == ratio(hits, cases, seed=3)
    assert ratio(hits, cases, seed=3) != ratio(hits, cases, seed=4)


def test_a_resample_without_cases_does_not_count_and_one_document_gives_no_interval() -> None:
    resamples = Resamples(3, 0)
    hits, cases = np.array([[1.0, 0], [0, 0], [0, 0]]), np.array([[1.0, 0], [0, 0], [0, 0]])
    assert [ends(draws) for draws in resamples.ratio_draws(hits, cases).T] == [(1.0, 1.0), (None, None)]
    for few in (0, 1):
        draws = Resamples(few, 0).ratio_draws(hits[:few], cases[:few])
        assert [ends(own) for own in draws.T] == [(None, None), (None, None)]
    assert Resamples(1, 0).quantiles([(np.array([1.0, 2.0]), np.zeros(2, int))], [0.5]) == [[Estimate(1.5, 2)]]
    assert Resamples(0, 0).quantiles([(np.zeros(0), np.zeros(0, int))], [0.5]) == [[NOTHING]]


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.integers(0, 9))
def test_sums_of_resamples_do_not_depend_on_the_order_of_adding(values: list[float], seed: int) -> None:
    """What makes the bytes of an answer the same on any machine: reversing the sum changes no bit."""
    resamples = Resamples(len(values), seed)
    column = np.array(values)
    sums = resamples.sums(column[:, None])[:, 0]
    weights = resamples.sums(np.eye(len(values)))
    assert weights.sum(1).tolist() == [len(values)] * DRAWS
    grid = resamples.sums(np.diag(column))  # each cluster's share of each sum
    backwards = np.zeros(DRAWS)
    for entry in reversed(range(len(values))):
        backwards += grid[:, entry]
    assert (backwards.tolist(), sums) == (sums.tolist(), pytest.approx(weights @ column, abs=1e-9))


def order(drawn: NDArray[np.int64], level: float) -> int:
    """The smallest value that this share of them does not exceed: NumPy's `inverted_cdf`, which takes far longer."""
    return int(np.sort(drawn)[math.ceil(level * len(drawn)) - 1])


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 5)), min_size=1, max_size=40),
    st.sampled_from([0.25, 0.5, 0.75]),
    st.integers(0, 3),
)
def test_bootstrapped_quantiles_are_those_of_drawing_them_all(
    rows: list[tuple[int, int]], level: float, seed: int
) -> None:
    values, codes = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    resamples = Resamples(6, seed)
    ((found,),) = resamples.quantiles([(values, codes)], [level])
    quantiles = []
    for weights in resamples.sums(np.eye(6)):
        drawn = np.repeat(values, weights[codes].astype(int))
        if len(drawn):
            quantiles.append(order(drawn, level))
    low, high = (np.quantile(quantiles, end, method="inverted_cdf") for end in LEVELS)
    value = np.quantile(values, level)
    assert found == Estimate(value, len(values), min(low, value), max(high, value))


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 5)), min_size=1, max_size=40), st.integers(0, 3))
def test_bootstrapped_medians_are_those_of_drawing_them_all(rows: list[tuple[int, int]], seed: int) -> None:
    values, codes = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    resamples = Resamples(6, seed)
    drawn = [np.repeat(values, weights[codes].astype(int)) for weights in resamples.sums(np.eye(6))]
    medians = [order(some, 0.5) if len(some) else np.nan for some in drawn]
    np.testing.assert_array_equal(resamples.quantile_draws(values, codes, [0.5])[0], medians)


@pytest.mark.parametrize(
    ("column", "seen"),
    [
        ([3.0, 5.0], [3.0, 5.0]),  # whole numbers stay
        ([2.0**23, 2.0**23 + 1], [2.0**23, 2.0**23 + 1]),  # also those whose sums single precision would round
        ([2.0**52 + 1, 2.0**51], [2.0**52 + 1, 2.0**51]),  # and those finer than a grid of 51 bits
        ([0.75, 1e-17], [0.75, 0.0]),  # twice 0.75 is 2^0.58: steps of 2^-50
        ([0.75, 2.0**-50], [0.75, 2.0**-50]),
        ([0.75, 2.0**-52], [0.75, 0.0]),
    ],
)
def test_sums_are_of_what_the_grid_holds(column: list[float], seen: list[float]) -> None:
    resamples = Resamples(2, 0)
    weights = resamples.sums(np.eye(2))
    sums = resamples.sums(np.array(column)[:, None])[:, 0]
    assert sums.tolist() == [float(one * seen[0] + other * seen[1]) for one, other in weights]


def test_the_ends_are_the_values_at_2_5_and_97_5_percent() -> None:
    """Of 1 to 200, shuffled, and two that are not numbers: the 5th and the 195th."""
    draws = np.random.default_rng(0).permutation(np.concatenate([np.arange(1.0, 201.0), [np.nan, np.nan]]))
    assert ends(draws) == (5.0, 195.0)


def test_many_sets_are_answered_as_one_by_one() -> None:
    draw = np.random.default_rng(0)
    sets = [(draw.random(size), draw.integers(0, 9, size)) for size in (0, 1, 7, 50)]
    resamples = Resamples(9, 0)
    together = resamples.quantiles(sets, [0.25, 0.5])
    assert together == [resamples.quantiles([one], [0.25, 0.5])[0] for one in sets]
    assert together[0] == [NOTHING, NOTHING]
