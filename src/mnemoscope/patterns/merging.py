"""Overlapping patterns of one memory merged: each kept one says something that the others do not.

Candidates come in order of how unlikely they are, which among those that explain the same triggers puts the most
specific first. A later one is kept only if it is unlikely among the prefixes that no kept pattern explains, or inside
every kept pattern that it overlaps with; both by the test of chance.py, against that part of the background.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnemoscope.patterns.chance import log10_tail
from mnemoscope.patterns.sharing import FEWEST
from mnemoscope.patterns.words import Integers


@dataclass(frozen=True)
class Candidate:
    """Something that one memory's triggers share and that is unlikely among random prefixes."""

    key: int
    mask: int
    """Bit g: the memory's group g shows it."""
    log10_p: float
    lift: float
    shown: Integers
    """The background prefixes that show it, sorted."""


def merged(
    candidates: Sequence[Candidate], *, groups: int, background: int, limit: float, first: Sequence[Candidate] = ()
) -> list[Candidate]:
    """The candidates that stay, after those of `first`; `limit` is log10 of the largest probability that counts.

    `groups` is the number of the memory's prefix groups, `background` that of the background's prefixes.
    """
    kept = list(first)
    explained = 0
    for candidate in first:
        explained |= candidate.mask
    marked: NDArray[np.bool_] | None = None
    for candidate in sorted(candidates, key=lambda one: (one.log10_p, one.shown.size, one.key)):
        overlapping = [other for other in kept if (candidate.mask & other.mask).bit_count() >= FEWEST]
        if overlapping:
            if marked is None:
                marked = np.zeros(background, dtype=np.bool_)
                for other in kept:
                    marked[other.shown] = True
            beyond = (candidate.mask & ~explained).bit_count()
            rest = int(np.count_nonzero(~marked[candidate.shown]))
            unexplained = groups - explained.bit_count()
            free = background - int(np.count_nonzero(marked))
            adds = beyond >= FEWEST and log10_tail(beyond, unexplained, rest, float(free)) <= limit
            if not adds and not all(_refines(candidate, other, limit) for other in overlapping):
                continue
        kept.append(candidate)
        explained |= candidate.mask
        if marked is not None:
            marked[candidate.shown] = True
    return kept


def _refines(candidate: Candidate, other: Candidate, limit: float) -> bool:
    """Whether the candidate is unlikely among prefixes that show the other pattern already."""
    both = (candidate.mask & other.mask).bit_count()
    held = int(np.isin(candidate.shown, other.shown, assume_unique=True).sum())
    return log10_tail(both, other.mask.bit_count(), held, float(other.shown.size)) <= limit
