"""Estimates with 95 % intervals: Wilson over memories, order statistics for quantiles, a cluster bootstrap otherwise.

Questions about memories are a census of the layer; their intervals state how far a share could move by chance over
memories. Questions about prefixes resample the documents of the prefixes. An undefined estimate (a share of no cases,
an interval from one document) is None, never a warning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mnemoscope.foundation.budget import BUDGET, rows_within

DRAWS = 2000
Z = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""
LEVELS = (0.025, 0.975)


@dataclass(frozen=True)
class Estimate:
    """A number, its number of cases, and its 95 % interval; None where it is undefined."""

    value: float | None
    count: int
    low: float | None = None
    high: float | None = None


AnyEstimate = TypeVar("AnyEstimate", bound=Estimate)
NOTHING = Estimate(None, 0)

Floats = NDArray[np.float64]
ClusteredValues = tuple[Floats, NDArray[Any]]
Bounds = tuple[float | None, float | None]


def enclose(value: float, count: int, bounds: Bounds) -> Estimate:
    """A quantile between two values, with bootstrap bounds; these are values themselves, so they are widened."""
    low, high = bounds
    if low is None or high is None:
        return Estimate(value, count)
    return Estimate(value, count, min(low, value), max(high, value))


def wilson(share: float, count: float) -> tuple[float, float]:
    """The Wilson interval of a share of `count` > 0 cases; the effective count of clustered cases need not be whole."""
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    # At a share of 0 or 1 the bound is exactly that share.
    low = max(0.0, (middle - spread) / scale) if share > 0 else 0.0
    return low, min(1.0, (middle + spread) / scale) if share < 1 else 1.0


def widen(estimate: AnyEstimate, looks: int) -> AnyEstimate:
    """The estimate with an interval that holds for `looks` estimates at once (Bonferroni): each side is stretched as a
    normal distribution's, since the percentiles would lie beyond the last bootstrap draw.
    """
    if looks <= 1 or estimate.value is None or estimate.low is None or estimate.high is None:
        return estimate
    factor = NormalDist().inv_cdf(1 - LEVELS[0] / looks) / Z
    low, high = (estimate.value + factor * (end - estimate.value) for end in (estimate.low, estimate.high))
    return replace(estimate, low=low, high=high)


@lru_cache(maxsize=4096)
def exact_share(hits: int, count: int, *, looks: int = 1) -> Estimate:
    """The share with its exact (Clopper and Pearson's) interval, for `looks` shares at once; Wilson's is too short at
    its lower end where fewer than one hit is expected.
    """
    if count == 0:
        return NOTHING
    level, logs = LEVELS[0] / looks, np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    choose = logs[count] - logs - logs[::-1]

    def at_most(most: int, part: float) -> float:
        """The probability of `most` hits or fewer, where each case hits with probability `part`."""
        kept = np.arange(most + 1) if 2 * most < count else np.arange(most + 1, count + 1)
        likely = float(np.exp(choose[kept] + kept * math.log(part) + (count - kept) * math.log1p(-part)).sum())
        return likely if 2 * most < count else 1 - likely

    def where(most: int, target: float) -> float:
        """The hit probability at which `most` hits or fewer have probability `target`; more hits make it rarer."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(most, middle) > target else (low, middle)
        return (low + high) / 2

    low = where(hits - 1, 1 - level) if hits > 0 else 0.0
    high = where(hits, level) if hits < count else 1.0
    return Estimate(hits / count, count, low, high)


def share(hits: float, count: int) -> Estimate:
    if count == 0:
        return NOTHING
    value = float(hits) / count
    return Estimate(value, count, *wilson(value, count))


def clustered_share(hits: ArrayLike, cases: ArrayLike) -> Estimate:
    """The share sum(hits) / sum(cases), one entry per cluster. The Wilson interval uses the effective number of cases,
    by the variance between clusters (Korn and Graubard 1998); the number of clusters where the share is 0 or 1.
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
    """The mean of independent values; its normal interval needs at least two."""
    numbers = np.asarray(values, np.float64)
    count = len(numbers)
    if count == 0:
        return NOTHING
    value = float(numbers.mean())
    if count == 1:
        return Estimate(value, 1)
    margin = Z * float(numbers.std(ddof=1)) / math.sqrt(count)
    return Estimate(value, count, value - margin, value + margin)


def mean_share(values: ArrayLike) -> Estimate:
    """The mean of independent shares or probabilities. Its interval is the normal one of its logit, which ends within 0
    and 1.
    """
    estimate = mean(values)
    if estimate.value is None or estimate.high is None or not 0 < estimate.value < 1:
        return estimate
    logit = math.log(estimate.value) - math.log1p(-estimate.value)
    margin = (estimate.high - estimate.value) / (estimate.value * (1 - estimate.value))
    low, high = (math.exp(-float(np.logaddexp(0.0, -end))) for end in (logit - margin, logit + margin))
    return enclose(estimate.value, estimate.count, (low, high))


def order_statistic(ordered: ArrayLike, level: float) -> Estimate:
    """A quantile of sorted values, one of them (`inverted_cdf`), with its level's Wilson bounds; extremes have none."""
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
    """Rounds up, but forgives the last bits: 0.07 * 100 is 7."""
    return math.ceil(number - 1e-9)


class Resamples:
    """`DRAWS` resamples of clusters (documents, memories), with replacement; deterministic in the seed."""

    def __init__(self, clusters: int, seed: int) -> None:
        self.clusters = clusters
        self._weights = np.zeros((DRAWS, clusters), np.uint8)
        """How often each cluster is in each resample, `[draw, cluster]`; 256 times does not occur in practice."""
        generator = np.random.default_rng((seed, clusters))
        rows = rows_within(BUDGET.resampled, max(1, clusters))
        for start in range(0, DRAWS if clusters else 0, rows):
            count = min(rows, DRAWS - start)
            drawn = generator.integers(0, clusters, size=(count, clusters)) + np.arange(count)[:, None] * clusters
            counts = np.bincount(drawn.reshape(-1), minlength=count * clusters)
            self._weights[start : start + count] = counts.reshape(count, clusters)

    def sums(self, columns: NDArray[Any]) -> Floats:
        """The sums `[draw, k]` of the columns `[cluster, k]` over each resample, the same to the bit on any machine."""
        exact = np.asarray(columns, np.float64)
        largest = float(np.abs(exact).max(initial=0.0)) * max(1, self.clusters)
        kind: type[np.float32 | np.float64] = np.float32 if largest < 1 << 24 else np.float64
        if not np.array_equal(exact, np.rint(exact)):
            # Rounded to a grid so coarse that no sum over a resample (at most `largest`) is rounded.
            grid = 2.0 ** min(1000, 51 - math.ceil(math.log2(largest)))
            exact, kind = np.rint(exact * grid) / grid, np.float64
        rows = rows_within(BUDGET.resampled, max(1, self.clusters))
        exact = exact.astype(kind, copy=False)
        pieces = [np.matmul(self._weights[start : start + rows].astype(kind), exact) for start in range(0, DRAWS, rows)]
        return np.concatenate(pieces).astype(np.float64, copy=False)

    def ratio_draws(self, numerators: NDArray[Any], denominators: NDArray[Any]) -> Floats:
        """sum(numerator) / sum(denominator) of each column per resample, `[draw, k]`; NaN for a zero denominator."""
        if self.clusters < 2:
            return np.empty((0, numerators.shape[1]))
        above, below = self.sums(numerators), self.sums(denominators)
        ratios = np.full_like(above, np.nan)
        np.divide(above, below, out=ratios, where=below > 0)
        return ratios

    def quantile_draws(self, values: ArrayLike, codes: NDArray[Any], levels: Sequence[float]) -> list[Floats]:
        """For each level that quantile `[draw]` in each resample: the least value with at least `level` of the weight
        at or below it, or NaN; `codes` are the values' clusters. The block of sorted values that holds it is sought
        first.
        """
        numbers = np.asarray(values, np.float64)
        order = np.argsort(numbers, kind="stable")
        ordered, clusters = numbers[order], codes[order]
        size = max(1, math.isqrt(len(ordered)))
        blocks = -(-len(ordered) // size)
        if blocks == 0:
            return [np.full(DRAWS, np.nan)] * len(levels)
        places, draws = np.arange(len(ordered)) // size, np.arange(DRAWS)
        counts = np.bincount(clusters * blocks + places, minlength=self.clusters * blocks)
        sums = self.sums(counts.reshape(self.clusters, blocks)).cumsum(1)
        quantiles = []
        for level in levels:
            needed = level * sums[:, -1:]
            block = (sums < needed).sum(1)
            before = np.where(block > 0, sums[draws, block - 1], 0.0)
            inside = np.minimum(block[:, None] * size + np.arange(size), len(ordered) - 1)
            weights = self._weights[draws[:, None], clusters[inside]].cumsum(1, dtype=np.int64)
            steps = (before[:, None] + weights < needed).sum(1)
            quantiles.append(np.where(sums[:, -1] > 0, ordered[inside[draws, steps]], np.nan))
        return quantiles

    def quantiles(self, sets: Sequence[ClusteredValues], levels: Sequence[float]) -> list[list[Estimate]]:
        """For each set and level, that quantile (linear between two values) with its interval."""
        estimates = []
        for values, codes in sets:
            draws = self.quantile_draws(values, codes, levels) if self.clusters > 1 else [np.empty(0)] * len(levels)
            estimates.append(
                [
                    enclose(float(np.quantile(values, level)), len(values), ends(of_level)) if len(values) else NOTHING
                    for level, of_level in zip(levels, draws, strict=True)
                ]
            )
        return estimates


def ends(draws: Floats) -> Bounds:
    """The 95 % interval of a number from its values in resamples; NaN does not count."""
    kept = np.sort(draws[~np.isnan(draws)])
    if not len(kept):
        return None, None
    low, high = (float(kept[_ceil(level * len(kept)) - 1]) for level in LEVELS)
    return low, high
