"""Tests whether a memory's triggers share a key more often than random prefixes do, and merges redundant patterns.

The prefix groups of a memory's best 25 positive triggers are tested, each once. Several groups of one document count
as one: what an article repeats is no evidence for a pattern. Where a text has few documents its sentences stand for
them (several groups of one sentence come from `--per-sentence all`).

The test is Fisher's exact test (hypergeometric tail): `held` of the background's prefixes and `count` of the memory's
`tried` prefixes show a key; the p-value is the probability of `count` or more if the memory's prefixes were drawn at
random from both sets together. Overlapping patterns of one memory are merged by the same test.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lgamma, log
from typing import Self

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.patterns.prefixes import Pairs
from mnemoscope.patterns.surface import Bools
from mnemoscope.patterns.words import Integers, Keys, ranges

LEVEL = 0.01
"""The largest corrected probability at which a pattern counts."""
FEWEST = 3
"""Fewest prefix groups in which a pattern recurs (paper, section 3.1)."""

COMPANY = 100
"""Of at least so many memories a layer's triggers are a second background: they differ from random prefixes in kind,
whatever the memory.
"""


@dataclass(frozen=True)
class Documents:
    """The document of each sentence that the atlas names; each is its own in a text of fewer than 25."""

    sentence: Integers
    """Ascending."""
    document: Integers

    @classmethod
    def read(cls, atlas: Atlas) -> Self:
        rows = atlas.table("sentences", columns=["sentence", "document"]).sort("sentence")
        sentence, document = (rows[name].to_numpy().astype(np.int64) for name in ("sentence", "document"))
        return cls(sentence, sentence if rows["document"].n_unique() < BEST_TRIGGERS else document)

    def of(self, sentence: Integers) -> Integers:
        return self.document[np.searchsorted(self.sentence, sentence)]


@dataclass(frozen=True)
class Groups:
    """The prefix groups of a layer's memories, by memory and rank; arrays have one entry per group."""

    memory: Integers
    """Index in `memories`."""
    place: Integers
    """Index among the groups of its memory."""
    rank: Integers
    prefix: Integers
    """Index of the prefix in its batch."""
    counts: Bools
    """Whether it is the memory's first group of its document (of its sentence, without `Documents`)."""
    memories: Integers
    starts: Integers
    """Index of each memory's first group; the last entry is the number of groups."""

    def count_long(self, length: Integers, least: int) -> Integers:
        """Per memory the number of groups that count and have more than `least` tokens."""
        long = self.counts & (length[self.prefix] > least)
        return np.bincount(self.memory[long], minlength=self.memories.size)


def groups_of(triggers: pl.DataFrame, documents: Documents | None = None) -> tuple[Groups, Integers, Integers]:
    """The groups of a layer's best triggers, and the sentence and position of each distinct prefix."""
    rows = triggers.filter(pl.col("rank") == pl.col("prefix_group")).sort("memory", "rank")
    memory, rank, sentence, position = (
        rows[name].to_numpy().astype(np.int64) for name in ("memory", "rank", "sentence", "position")
    )
    memories, starts, which = np.unique(memory, return_index=True, return_inverse=True)
    place = np.arange(memory.size) - starts[which]
    counts = np.zeros(memory.size, dtype=np.bool_)
    document = sentence if documents is None else documents.of(sentence)
    span = int(document.max(initial=0)) + 1
    counts[np.unique(which * span + document, return_index=True)[1]] = True
    far = int(position.max(initial=0)) + 1
    prefixes, prefix = np.unique(sentence * far + position, return_inverse=True)
    groups = Groups(which, place, rank, prefix, counts, memories, np.append(starts, memory.size))
    return groups, prefixes // far, prefixes % far


@dataclass(frozen=True)
class SharedKeys:
    """Every pair of memory and key that occurs, sorted by memory, with the number of groups that count."""

    memory: Integers
    key: Keys
    count: Integers
    mask: Integers
    """Bit g is set if the memory's group g has the key."""

    def per_memory(self, memories: int) -> Integers:
        """The number of distinct keys of each memory: of possible tests."""
        return np.bincount(self.memory, minlength=memories)


def count_shared(groups: Groups, pairs: Pairs) -> SharedKeys:
    index, flat = spread_pairs(groups, pairs)
    kinds, which = np.unique(pairs.keys[flat], return_inverse=True)
    codes, at = np.unique(groups.memory[index] * kinds.size + which, return_inverse=True)
    memory, key = np.divmod(codes, max(1, kinds.size))
    mask = np.zeros(codes.size, dtype=np.int64)
    np.bitwise_or.at(mask, at, np.int64(1) << groups.place[index])
    return SharedKeys(memory, kinds[key], np.bincount(at[groups.counts[index]], minlength=codes.size), mask)


def spread_pairs(groups: Groups, pairs: Pairs) -> tuple[Integers, Integers]:
    """The index in `groups` and the index in `pairs.keys`, for every pair of group and key."""
    return ranges(pairs.starts[groups.prefix], np.diff(pairs.starts)[groups.prefix])


@lru_cache(maxsize=1 << 18)
def log10_tail(count: int, tried: int, held: int, background: float) -> float:
    """log10 of the hypergeometric tail. `background` may be fractional (a number of prefixes as long as these), and
    counts as at least `held`.
    """
    if count <= 0:
        return 0.0
    background = max(background, float(held))
    shows = held + count
    most = min(tried, shows)
    without = background - shows  # the background's others; below 0, X has a lower bound
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
    """The memory's share of prefixes over the background's, which counts one prefix more."""
    return (count / tried) / ((held + 1) / (background + 1))


@dataclass(frozen=True)
class Candidate:
    """A feature or topic that one memory's triggers share and that is unlikely among random prefixes."""

    key: int
    mask: int
    log10_p: float
    lift: float
    tokens: int
    """The number of tokens that it specifies in full."""
    shown: Integers


def mask_of(groups: Bools) -> int:
    return sum(1 << int(group) for group in np.flatnonzero(groups))


def merge(
    candidates: Sequence[Candidate], *, groups: int, background: int, limit: float, first: Sequence[Candidate] = ()
) -> list[Candidate]:
    """`first`, then the kept candidates by p-value; `limit` is log10 of the largest p-value that counts.

    `groups` and `background` are numbers of prefixes. Of candidates that explain the same groups only the most specific
    is considered. One that overlaps with kept patterns is kept only if it is significant among the prefixes that these
    leave unexplained, or within each of them.
    """
    kept: list[tuple[Candidate, Bools]] = []
    explained, anywhere = 0, np.zeros(background, dtype=np.bool_)
    # Of candidates with the same groups, the rarest in the background, then the one that specifies most tokens.
    best: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: (one.shown.size, -one.tokens, one.key)):
        best.setdefault(candidate.mask, candidate)
    ordered = sorted(best.values(), key=lambda one: (one.log10_p, one.key))
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


def _refines(candidate: Candidate, other: Candidate, shows: Bools, *, limit: float) -> bool:
    """Whether the candidate is significant among the prefixes that show `other` (in the background: `shows`)."""
    both = (candidate.mask & other.mask).bit_count()
    held = int(np.count_nonzero(shows[candidate.shown]))
    return log10_tail(both, other.mask.bit_count(), held, float(other.shown.size)) <= limit
