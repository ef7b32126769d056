"""Overlapping patterns of one memory merged: each kept one says something that the others do not.

Of those that explain the very same triggers only the most specific is looked at. The others come in order of how
unlikely they are, and a later one is kept only if it is unlikely among the prefixes that no kept pattern explains, or
inside every kept pattern that it overlaps with; both by the test of chance.py, against that part of the background.
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
    tokens: int
    """How many tokens of a prefix it says in full."""
    shown: Integers
    """The background prefixes that show it, sorted."""


def merged(
    candidates: Sequence[Candidate], *, groups: int, background: int, limit: float, first: Sequence[Candidate] = ()
) -> list[Candidate]:
    """The candidates that stay, after those of `first`; `limit` is log10 of the largest probability that counts.

    `groups` is the number of the memory's prefix groups, `background` that of the background's prefixes.
    """
    kept = [_Kept(candidate, _marked(candidate, background)) for candidate in first]
    explained = 0
    anywhere = np.zeros(background, dtype=np.bool_)
    for one in kept:
        explained |= one.candidate.mask
        anywhere |= one.marked
    for candidate in sorted(_most_specific(candidates), key=lambda one: (one.log10_p, one.key)):
        overlapping = [one for one in kept if (candidate.mask & one.candidate.mask).bit_count() >= FEWEST]
        if overlapping:
            beyond = (candidate.mask & ~explained).bit_count()
            rest = int(np.count_nonzero(~anywhere[candidate.shown]))
            free = float(background - np.count_nonzero(anywhere))
            adds = beyond >= FEWEST and log10_tail(beyond, groups - explained.bit_count(), rest, free) <= limit
            if not adds and not all(_refines(candidate, one, limit) for one in overlapping):
                continue
        kept.append(_Kept(candidate, _marked(candidate, background)))
        explained |= candidate.mask
        anywhere |= kept[-1].marked
    return [one.candidate for one in kept]


def _most_specific(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of those that explain the very same groups, the one that is rarest, then says most."""
    best: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: (one.shown.size, -one.tokens, one.key)):
        best.setdefault(candidate.mask, candidate)
    return list(best.values())


@dataclass(frozen=True)
class _Kept:
    candidate: Candidate
    marked: NDArray[np.bool_]
    """[background]: whether the prefix shows it."""


def _marked(candidate: Candidate, background: int) -> NDArray[np.bool_]:
    marked = np.zeros(background, dtype=np.bool_)
    marked[candidate.shown] = True
    return marked


def _refines(candidate: Candidate, one: _Kept, limit: float) -> bool:
    """Whether the candidate is unlikely among prefixes that show the other pattern already."""
    both = (candidate.mask & one.candidate.mask).bit_count()
    held = int(np.count_nonzero(one.marked[candidate.shown]))
    return log10_tail(both, one.candidate.mask.bit_count(), held, float(one.candidate.shown.size)) <= limit
