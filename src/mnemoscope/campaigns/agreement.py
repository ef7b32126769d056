"""Krippendorff's alpha for nominal data: how far annotators agree beyond chance, with a bootstrap over items.

Krippendorff, Content Analysis (2004), chapter 11: alpha = 1 - D_o / D_e over the matrix of coincidences. Units that one
person alone judged say nothing and are left out. Reads nothing.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mnemoscope.intervals import NOTHING, Estimate, Resamples

Unit = Sequence[Hashable]
"""The values that different people gave to one thing; missing ones are left out."""


def alpha(clusters: Sequence[Sequence[Unit]], *, seed: int = 0) -> Estimate:
    """Krippendorff's alpha of all units, its count of values that could be paired, and a 95 % interval.

    The units come in clusters (the prefixes of one key): the interval is from a seeded bootstrap over clusters, widened
    to hold the value. No value where fewer than two values can be paired, or all are the same: then chance alone would
    agree as well.
    """
    names = {
        value: place for place, value in enumerate(dict.fromkeys(v for units in clusters for u in units for v in u))
    }
    counted = np.stack([_coincidences(units, names) for units in clusters]) if clusters else np.zeros((0, 0, 0))
    counted = counted[counted.sum((1, 2)) > 0]
    found = _alpha(counted.sum(0)[None])[0] if len(counted) else np.nan
    if np.isnan(found):
        return NOTHING
    count = round(float(counted.sum()))
    if len(counted) < 2:
        return Estimate(float(found), count)
    size = len(names)
    sums = Resamples(len(counted), seed).sums(counted.reshape(len(counted), -1)).reshape(-1, size, size)
    drawn = _alpha(sums)
    drawn = np.sort(drawn[~np.isnan(drawn)])
    if not drawn.size:
        return Estimate(float(found), count)
    low, high = (float(drawn[max(0, int(np.ceil(level * drawn.size)) - 1)]) for level in (0.025, 0.975))
    return Estimate(float(found), count, min(low, float(found)), max(high, float(found)))


def _coincidences(units: Sequence[Unit], names: dict[Hashable, int]) -> NDArray[np.float64]:
    """The matrix of coincidences `[value, value]`: every unit adds as much as it has values that can be paired."""
    matrix = np.zeros((len(names), len(names)))
    for unit in units:
        if len(unit) < 2:
            continue
        counts = np.zeros(len(names))
        for value in unit:
            counts[names[value]] += 1
        matrix += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return matrix


def _alpha(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Alpha of each matrix `[draw, value, value]`; NaN where all values are the same."""
    whole = matrices.sum((1, 2))
    margins = matrices.sum(2)
    observed = whole - np.trace(matrices, axis1=1, axis2=2)
    expected = np.square(whole) - np.square(margins).sum(1)
    # Margins are sums of thirds and the like: what should be zero may be off by rounding.
    some = expected > 1e-9 * np.maximum(1.0, np.square(whole))
    ratio = np.divide((whole - 1) * observed, expected, out=np.full(len(whole), np.nan), where=some)
    found: NDArray[np.float64] = 1 - ratio
    return found
