"""Estimates with 95 % intervals: Wilson over memories, order statistics for quantiles, a cluster bootstrap otherwise.

Questions about memories are a census of the layer, and their intervals say how far a share could move by chance over
memories. Questions about prefixes resample the documents that the prefixes are from. Whatever is not defined is None,
never a warning: a share of nothing, an interval from one document.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS = 2000
"""Resamples of a bootstrap."""
Z = 1.959963984540054
"""Standard deviations of a normal distribution that 95 % lie within."""
LEVELS = (0.025, 0.975)
_AT_ONCE = 1 << 22
"""Weights that are turned into floating-point numbers at one time: 32 MiB."""


@dataclass(frozen=True)
class Estimate:
    """A number, how many cases it is made of, and its 95 % interval; None where it is not defined."""

    value: float | None
    count: int
    low: float | None = None
    high: float | None = None


AnyEstimate = TypeVar("AnyEstimate", bound=Estimate)
NOTHING = Estimate(None, 0)

Floats = NDArray[np.float64]
ClusteredValues = tuple[Floats, NDArray[Any]]
"""Values, and the cluster of each."""
Bounds = tuple[float | None, float | None]


def enclose(value: float, count: int, bounds: Bounds) -> Estimate:
    """A quantile, linear between two values, with the bounds that a bootstrap found.

    The bootstrap's ends are values themselves, so they are made to enclose what lies between two.
    """
    low, high = bounds
    if low is None or high is None:
        return Estimate(value, count)
    return Estimate(value, count, min(low, value), max(high, value))


def wilson(share: float, count: float) -> tuple[float, float]:
    """The Wilson interval of a share seen over `count` > 0 cases (not whole where cases are clustered)."""
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    # At a share of 0 or 1 the bound is that share; rounding must not say otherwise.
    low = max(0.0, (middle - spread) / scale) if share > 0 else 0.0
    return low, min(1.0, (middle + spread) / scale) if share < 1 else 1.0


def widen(found: AnyEstimate, looks: int) -> AnyEstimate:
    """The estimate with an interval that holds for `looks` such estimates at once, in 95 % of cases (Bonferroni).

    Either side is stretched as a normal distribution's would be: by the quantile of 1 - 0.025 / looks, over that of
    0.975. (The percentiles themselves would lie beyond the last of a bootstrap's draws.)
    """
    if looks <= 1 or found.value is None or found.low is None or found.high is None:
        return found
    factor = NormalDist().inv_cdf(1 - LEVELS[0] / looks) / Z
    low, high = (found.value + factor * (end - found.value) for end in (found.low, found.high))
    return replace(found, low=low, high=high)


@lru_cache(maxsize=4096)
def exact_share(hits: int, count: int, *, looks: int = 1) -> Estimate:
    """The share `hits / count` with its exact (Clopper and Pearson's) interval, for `looks` shares at once.

    Wilson's is too short at its lower end where fewer than one hit is to be expected: that is where a rare share, the
    best of many, is asked whether it is more than chance.
    """
    if count == 0:
        return NOTHING
    level, logs = LEVELS[0] / looks, np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    choose = logs[count] - logs - logs[::-1]

    def at_most(most: int, part: float) -> float:
        """How likely `most` hits or fewer are, of which each has the probability `part`."""
        kept = np.arange(most + 1) if 2 * most < count else np.arange(most + 1, count + 1)
        likely = float(np.exp(choose[kept] + kept * math.log(part) + (count - kept) * math.log1p(-part)).sum())
        return likely if 2 * most < count else 1 - likely

    def where(most: int, wanted: float) -> float:
        """The probability of a hit at which `most` hits or fewer are as likely as wanted: more make it rarer."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(most, middle) > wanted else (low, middle)
        return (low + high) / 2

    low = where(hits - 1, 1 - level) if hits > 0 else 0.0
    high = where(hits, level) if hits < count else 1.0
    return Estimate(hits / count, count, low, high)


def share(hits: float, count: int) -> Estimate:
    """The share `hits / count` with its Wilson interval."""
    if count == 0:
        return NOTHING
    value = float(hits) / count
    return Estimate(value, count, *wilson(value, count))


def clustered_share(hits: ArrayLike, cases: ArrayLike) -> Estimate:
    """The share sum(hits) / sum(cases) of cases that come in clusters, one entry each.

    The Wilson interval of as many independent cases as would give the variance between clusters (Korn and Graubard
    1998): at most all cases; as many as there are clusters where the share is 0 or 1 and the variance tells nothing.
    """
    hit, case = np.asarray(hits, np.float64), np.asarray(cases, np.float64)
    hit, case = hit[case > 0], case[case > 0]
    total, clusters = float(case.sum()), len(case)
    if clusters == 0:
        return NOTHING
    value = float(hit.sum()) / total
    effective = float(clusters)
    if clusters > 1 and 0 < value < 1:
        variance = clusters / (clusters - 1) * float(np.square(hit - value * case).sum()) / total**2
        effective = total if variance == 0 else min(total, value * (1 - value) / variance)
    return Estimate(value, int(total), *wilson(value, effective))


def mean(values: ArrayLike) -> Estimate:
    """The mean of independent values, and its normal interval where there are at least two."""
    found = np.asarray(values, np.float64)
    count = len(found)
    if count == 0:
        return NOTHING
    value = float(found.mean())
    if count == 1:
        return Estimate(value, 1)
    margin = Z * float(found.std(ddof=1)) / math.sqrt(count)
    return Estimate(value, count, value - margin, value + margin)


def order_statistic(ordered: ArrayLike, level: float) -> Estimate:
    """The quantile of sorted values, one of them (`inverted_cdf`).

    Its interval reaches between the values at the ends of the level's own Wilson interval; the least and the greatest
    value have none.
    """
    values = np.asarray(ordered, np.float64)
    count = len(values)
    if count == 0:
        return NOTHING

    def at(part: float) -> float:
        return float(values[min(count - 1, max(0, _ceil(part * count) - 1))])

    if level in (0.0, 1.0):
        return Estimate(at(level), count)
    low, high = wilson(level, count)
    return Estimate(at(level), count, at(low), at(high))


def _ceil(number: float) -> int:
    """The next whole number, forgiving the last bits: 0.07 * 100 is 7."""
    return math.ceil(number - 1e-9)


class Resamples:
    """`DRAWS` resamples of clusters (documents, memories), drawn with replacement; the seed decides which."""

    def __init__(self, clusters: int, seed: int) -> None:
        self.clusters = clusters
        self._weights = np.zeros((DRAWS, clusters), np.uint8)
        """How often each cluster is in each resample; it cannot be there 256 times, in practice."""
        generator = np.random.default_rng((seed, clusters))
        rows = max(1, _AT_ONCE // max(1, clusters))
        for start in range(0, DRAWS if clusters else 0, rows):
            count = min(rows, DRAWS - start)
            drawn = generator.integers(0, clusters, size=(count, clusters)) + np.arange(count)[:, None] * clusters
            found = np.bincount(drawn.reshape(-1), minlength=count * clusters)
            self._weights[start : start + count] = found.reshape(count, clusters)

    def sums(self, columns: NDArray[Any]) -> Floats:
        """The sums `[draw, k]` of the columns `[cluster, k]` over each resample, the same to the bit on any machine."""
        exact, single = _on_grid(columns, self.clusters)
        kind: type[np.float32 | np.float64] = np.float32 if single else np.float64
        rows = max(1, _AT_ONCE // max(1, self.clusters))
        exact = exact.astype(kind, copy=False)
        pieces = [np.matmul(self._weights[start : start + rows].astype(kind), exact) for start in range(0, DRAWS, rows)]
        return np.concatenate(pieces).astype(np.float64, copy=False)

    def ratio_draws(self, numerators: NDArray[Any], denominators: NDArray[Any]) -> Floats:
        """Each column's sum(numerator) / sum(denominator) in each resample: `[draw, k]` of arrays `[cluster, k]`.

        Not a number where the denominator is 0; one cluster alone has no draws.
        """
        if self.clusters < 2:
            return np.empty((0, numerators.shape[1]))
        above, below = self.sums(numerators), self.sums(denominators)
        ratios = np.full_like(above, np.nan)
        np.divide(above, below, out=ratios, where=below > 0)
        return ratios

    def median_draws(self, values: ArrayLike, codes: NDArray[Any]) -> Floats:
        """The median `[draw]` of values (codes: the cluster of each) in each resample: one of them, or not a number.

        First the block of sorted values that holds it is found from the blocks' sums, then the value within.
        """
        ordered, clusters = _sorted_set(values, codes)
        size = max(1, math.isqrt(len(ordered)))
        blocks = -(-len(ordered) // size)
        if blocks == 0:
            return np.full(DRAWS, np.nan)
        places = np.arange(len(ordered)) // size
        counts = np.bincount(clusters * blocks + places, minlength=self.clusters * blocks)
        sums = self.sums(counts.reshape(self.clusters, blocks)).cumsum(1)
        half = sums[:, -1:] / 2
        block = np.minimum((sums < half).sum(1), blocks - 1)
        before = np.where(block > 0, sums[np.arange(DRAWS), block - 1], 0.0)
        inside = np.minimum(block[:, None] * size + np.arange(size), len(ordered) - 1)
        weights = self._weights[np.arange(DRAWS)[:, None], clusters[inside]].cumsum(1, dtype=np.int64)
        steps = np.minimum((before[:, None] + weights < half).sum(1), size - 1)
        found = ordered[inside[np.arange(DRAWS), steps]]
        return np.where(sums[:, -1] > 0, found, np.nan)

    def quantiles(self, sets: Sequence[ClusteredValues], levels: Sequence[float]) -> list[list[Estimate]]:
        """For each set and level, that quantile (linear between two values) with its interval.

        The quantile of a resample is the least value with at least `level` of the resample's weight at or below it.
        Its distribution is never drawn up: that it is at most x is the same as a sum over clusters being large enough,
        so both ends are found by bisection over the sorted values.
        """
        kept = [_sorted_set(*one) for one in sets]
        problems = [(index, level, end) for index in range(len(kept)) for level in levels for end in LEVELS]
        usable = [len(kept[index][0]) > 0 and self.clusters > 1 for index, _, _ in problems]
        low = np.zeros(len(problems), np.int64)
        high = np.array([max(0, len(kept[index][0]) - 1) for index, _, _ in problems], np.int64)
        if any(usable):
            whole = self.sums(np.stack([np.bincount(codes, minlength=self.clusters) for _, codes in kept], axis=1))
            needed = np.stack([level * whole[:, index] for index, level, _ in problems], axis=1)
            valid = np.stack([whole[:, index] > 0 for index, _, _ in problems], axis=1)
            enough = np.array([_ceil(end * count) for (*_, end), count in zip(problems, valid.sum(0), strict=True)])
        while any(usable) and (low < high).any():
            middle = (low + high) // 2
            counts = [
                np.bincount(kept[index][1][: place + 1], minlength=self.clusters)
                for (index, _, _), place in zip(problems, middle.tolist(), strict=True)
            ]
            reached = (self.sums(np.stack(counts, axis=1)) >= needed) & valid
            good = reached.sum(0) >= enough
            high = np.where(good, middle, high)
            low = np.where(good, low, np.minimum(middle + 1, high))
        ends = [
            float(kept[index][0][place]) if fit else None
            for (index, _, _), place, fit in zip(problems, low.tolist(), usable, strict=True)
        ]
        asked = [(kept[index][0], level) for index, level, _ in problems[::2]]
        found = [
            enclose(float(np.quantile(values, level)), len(values), bounds) if len(values) else NOTHING
            for (values, level), bounds in zip(asked, zip(ends[::2], ends[1::2], strict=True), strict=True)
        ]
        return [found[i : i + len(levels)] for i in range(0, len(found), len(levels))]


def ends(draws: Floats) -> Bounds:
    """The 95 % interval of a number by its values in resamples; those that are not a number do not count."""
    kept = np.sort(draws[~np.isnan(draws)])
    if not len(kept):
        return None, None
    low, high = (float(kept[_ceil(level * len(kept)) - 1]) for level in LEVELS)
    return low, high


def _sorted_set(values: ArrayLike, codes: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
    found = np.asarray(values, np.float64)
    order = np.argsort(found, kind="stable")
    return found[order], codes[order]


def _on_grid(columns: NDArray[Any], clusters: int) -> tuple[Floats, bool]:
    """The columns rounded to a grid so coarse that no sum of a resample is ever rounded, in whatever order it is made.

    Whole numbers stay as they are; the second answer says whether single precision holds their sums, too. (A resample's
    sum is at most `clusters` times the largest entry.)
    """
    exact = np.asarray(columns, np.float64)
    largest = float(np.abs(exact).max(initial=0.0)) * max(1, clusters)
    if largest == 0 or np.array_equal(exact, np.rint(exact)):
        return exact, largest < 1 << 24
    grid = 2.0 ** min(1000, 51 - math.ceil(math.log2(largest)))
    return np.rint(exact * grid) / grid, False
