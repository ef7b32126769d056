"""Whether a pattern is more than chance, and whether it says something that a memory's other patterns do not.

The test is the hypergeometric tail (Fisher's exact test): if `held` of the background's prefixes and `count` of the
memory's `tried` show a feature, and the memory's were drawn at random from both together, how probable are `count` or
more? What the background lacks gets no probability of zero, since the memory's own prefixes are in the urn too.
Overlapping patterns of one memory are merged by the same test. Knows nothing of what a feature is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lgamma, log

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.01
"""The largest corrected probability at which a pattern counts."""
FEWEST = 3
"""Prefix groups in which a pattern must recur (paper, section 3.1)."""


@lru_cache(maxsize=1 << 18)
def log10_tail(count: int, tried: int, held: int, background: float) -> float:
    """log10 of the probability that `count` or more of `tried` random prefixes show what `held` of `background` show.

    `background` may be fractional (so many prefixes as long as these) and counts as at least `held`.
    """
    if count <= 0:
        return 0.0
    background = max(background, float(held))
    shows = held + count
    most = min(tried, shows)
    without = background - shows  # of the background, were all that show it drawn from it; below 0: X has a lower end
    if count + without < 0:
        return 0.0
    term = _log_choose(tried, count) + _log_choose(background, held) - _log_choose(background + tried, shows)
    ratio = total = 1.0
    for hits in range(count, most):
        # P(X = hits + 1) / P(X = hits)
        ratio *= (tried - hits) * (shows - hits) / ((hits + 1) * (without + hits + 1))
        total += ratio
        if ratio < 1e-12 * total:
            break
    return min(0.0, (term + log(total)) / log(10))


def _log_choose(n: float, k: float) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def lift(count: int, tried: int, held: int, background: float) -> float:
    """How much more often the memory's prefixes show it than the background's do; one more is added to the latter."""
    return (count / tried) / ((held + 1) / (background + 1))


@dataclass(frozen=True)
class Candidate:
    """Something that one memory's triggers share and that is unlikely among random prefixes."""

    key: int
    mask: int
    """Bit g: the memory's group g shows it."""
    log10_p: float
    lift: float
    tokens: int
    """How many tokens of a prefix it says in full."""
    shown: NDArray[np.int64]
    """The background prefixes that show it, sorted."""


def merge(
    candidates: Sequence[Candidate], *, groups: int, background: int, limit: float, first: Sequence[Candidate] = ()
) -> list[Candidate]:
    """The candidates that stay, after those of `first`; `limit` is log10 of the largest probability that counts.

    `groups` is the number of the memory's prefix groups, `background` that of the background's prefixes. Of those that
    explain the very same groups only the most specific is looked at. The others come in order of how unlikely they are,
    and a later one is kept only if it is unlikely among the prefixes that no kept pattern explains, or inside every
    kept pattern that it overlaps with; both against that part of the background.
    """
    kept: list[tuple[Candidate, NDArray[np.bool_]]] = []
    explained, anywhere = 0, np.zeros(background, dtype=np.bool_)
    ordered = sorted(_most_specific(candidates), key=lambda one: (one.log10_p, one.key))
    for number, candidate in enumerate([*first, *ordered]):
        overlapping = [one for one in kept if (candidate.mask & one[0].mask).bit_count() >= FEWEST]
        if overlapping and number >= len(first):
            beyond = (candidate.mask & ~explained).bit_count()
            rest = int(np.count_nonzero(~anywhere[candidate.shown]))
            free = float(background - np.count_nonzero(anywhere))
            adds = beyond >= FEWEST and log10_tail(beyond, groups - explained.bit_count(), rest, free) <= limit
            if not adds and not all(_refines(candidate, *one, limit=limit) for one in overlapping):
                continue
        shows = np.zeros(background, dtype=np.bool_)
        shows[candidate.shown] = True
        kept.append((candidate, shows))
        explained |= candidate.mask
        anywhere |= shows
    return [candidate for candidate, _ in kept]


def _most_specific(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of those that explain the very same groups, the one that is rarest, then says most."""
    best: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: (one.shown.size, -one.tokens, one.key)):
        best.setdefault(candidate.mask, candidate)
    return list(best.values())


def _refines(candidate: Candidate, other: Candidate, shows: NDArray[np.bool_], *, limit: float) -> bool:
    """Whether the candidate is unlikely among prefixes that show the other pattern; `shows` are the background's."""
    both = (candidate.mask & other.mask).bit_count()
    held = int(np.count_nonzero(shows[candidate.shown]))
    return log10_tail(both, other.mask.bit_count(), held, float(other.shown.size)) <= limit
