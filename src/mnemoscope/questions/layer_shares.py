"""Statements about layers, each of which has a number with an interval: in how many, and where, they hold.

Layers are no sample, so a share of layers has no interval of its own. What is unsure is each layer's number; with the
intervals corrected for how many layers are looked at (Bonferroni), all of them hold at once in 95 % of cases, and so
does what is counted from them. Reads nothing.
"""

from collections.abc import Mapping, Sequence

from mnemoscope.intervals import NOTHING, Estimate, widened
from mnemoscope.questions.validation import Column, contrast


def share_above(found: Sequence[Estimate], bound: float) -> Estimate:
    """The share of the layers whose number is above the bound; a layer without a number is not.

    The interval reaches from the share of those that are clearly above to that of those that are not clearly below.
    """
    if not found:
        return NOTHING
    corrected = [widened(one, len(found)) for one in found]
    above = sum(one.low is not None and one.low > bound for one in corrected)
    below = sum(one.high is not None and one.high <= bound for one in corrected)
    seen = sum(one.value is not None and one.value > bound for one in found)
    count = len(found)
    return Estimate(seen / count, count, above / count, 1 - below / count)


def turned(found: Estimate) -> Estimate:
    """The other side's share."""
    value, low, high = (None if end is None else 1 - end for end in (found.value, found.low, found.high))
    return Estimate(value, found.count, high, low)


def may_be_least(found: Mapping[int | None, Column]) -> list[int]:
    """The layers that may be the one with the smallest number: those not clearly above the one where it is seen.

    Differences are taken resample by resample, and corrected for the others that the true least one is compared with.
    """
    layers = [layer for layer, column in found.items() if layer is not None and column.value is not None]
    if not layers:
        return []
    least = min(layers, key=lambda layer: (found[layer].value, layer))
    others = max(1, len(layers) - 1)
    differences = {layer: widened(contrast((1, found[layer]), (-1, found[least])), others) for layer in layers}
    return [layer for layer, one in differences.items() if layer == least or one.low is None or one.low <= 0]
