"""What each memory's triggers share, whether that is more than chance, and which patterns are redundant.

The prefix groups of a memory's best 25 positive triggers are tested, each once. If several come from one sentence
(`--per-sentence all`), the sentence counts once, since its words would recur by themselves.

The test is the hypergeometric tail (Fisher's exact test): if `held` of the background's prefixes and `count` of the
memory's `tried` show a feature, and the memory's were drawn at random from both together, how probable are `count` or
more? A feature that the background lacks has no probability of zero, since the memory's own prefixes are in the urn
too. Overlapping patterns of one memory are merged by the same test. Knows nothing about features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lgamma, log

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.patterns.prefixes import Pairs
from mnemoscope.patterns.words import Integers, Keys, ranges

LEVEL = 0.01
"""The largest corrected probability at which a pattern counts."""
FEWEST = 3
"""Fewest prefix groups in which a pattern recurs (paper, section 3.1)."""


@dataclass(frozen=True)
class Groups:
    """The prefix groups of a layer's memories, by memory and rank; arrays have one entry per group."""

    memory: Integers
    """Its place in `memories`, not its number."""
    place: Integers
    """The group's place among those of its memory, from 0."""
    rank: Integers
    prefix: Integers
    """The prefix's place in the batch that was read."""
    counts: NDArray[np.bool_]
    """Whether it is the memory's first group of its sentence."""
    memories: Integers
    starts: Integers
    """Where each memory's groups begin; the last entry is the length."""

    def count_long(self, length: Integers, least: int) -> Integers:
        """Per memory the groups that count and have prefixes of more than `least` tokens."""
        long = self.counts & (length[self.prefix] > least)
        return np.add.reduceat(long, self.starts[:-1], dtype=np.int64) if long.size else np.zeros(0, dtype=np.int64)


def groups_of(triggers: pl.DataFrame) -> tuple[Groups, Integers, Integers]:
    """The prefix groups of a layer's best triggers, and the (sentence, position) of their prefixes."""
    rows = triggers.filter(pl.col("rank") == pl.col("prefix_group")).sort("memory", "rank")
    memory, rank, sentence, position = (
        rows[name].to_numpy().astype(np.int64) for name in ("memory", "rank", "sentence", "position")
    )
    memories, starts, which = np.unique(memory, return_index=True, return_inverse=True)
    place = np.arange(memory.size) - starts[which]
    counts = np.zeros(memory.size, dtype=np.bool_)
    span = int(sentence.max(initial=0)) + 1
    counts[np.unique(which * span + sentence, return_index=True)[1]] = True
    far = int(position.max(initial=0)) + 1
    prefixes, prefix = np.unique(sentence * far + position, return_inverse=True)
    groups = Groups(which, place, rank, prefix, counts, memories, np.append(starts, memory.size))
    return groups, prefixes // far, prefixes % far


@dataclass(frozen=True)
class SharedKeys:
    """Every (memory, key) that occurs, by memory: in how many groups that count, and in which."""

    memory: Integers
    key: Keys
    count: Integers
    mask: Integers
    """Bit g stands for the memory's group g."""

    def per_memory(self, memories: int) -> Integers:
        """The number of different keys of each memory's groups: of patterns that can be tried."""
        return np.bincount(self.memory, minlength=memories)


def count_shared(groups: Groups, pairs: Pairs) -> SharedKeys:
    index, flat = spread_pairs(groups, pairs)
    if not flat.size:
        nothing = np.zeros(0, dtype=np.int64)
        return SharedKeys(nothing, nothing.astype(np.uint64), nothing, nothing)
    kinds, which = np.unique(pairs.keys[flat], return_inverse=True)
    code = groups.memory[index] * kinds.size + which
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    index = index[order]
    return SharedKeys(
        ordered[starts] // kinds.size,
        kinds[ordered[starts] % kinds.size],
        np.add.reduceat(groups.counts[index], starts, dtype=np.int64),
        np.bitwise_or.reduceat(np.int64(1) << groups.place[index], starts),
    )


def spread_pairs(groups: Groups, pairs: Pairs) -> tuple[Integers, Integers]:
    """Every (group, key): the group's place in `groups`, and the key's in `pairs`."""
    return ranges(pairs.starts[groups.prefix], np.diff(pairs.starts)[groups.prefix])


@lru_cache(maxsize=1 << 18)
def log10_tail(count: int, tried: int, held: int, background: float) -> float:
    """log10 of the probability that `count` or more of `tried` random prefixes show what `held` of `background` show.
    `background` may be fractional (a number of prefixes as long as these), and counts as at least `held`.
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
    """The memory's share of prefixes over the background's, to which one more is added."""
    return (count / tried) / ((held + 1) / (background + 1))


@dataclass(frozen=True)
class Candidate:
    """A feature or topic that one memory's triggers share and that is unlikely among random prefixes."""

    key: int
    mask: int
    log10_p: float
    lift: float
    tokens: int
    """How many tokens of a prefix it specifies in full."""
    shown: NDArray[np.int64]


def merge(
    candidates: Sequence[Candidate], *, groups: int, background: int, limit: float, first: Sequence[Candidate] = ()
) -> list[Candidate]:
    """The candidates that stay, after those of `first`; `limit` is log10 of the largest probability that counts.

    `groups` is the number of the memory's prefix groups, `background` that of the background's prefixes. Of candidates
    that explain the same groups only the most specific is considered. The others come in order of probability; a later
    one is kept only if it is unlikely among the prefixes that no kept pattern explains, or inside every kept pattern
    that it overlaps with; both against that part of the background.
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
    """Of candidates that explain the same groups, the rarest, then the one that specifies most tokens."""
    best: dict[int, Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: (one.shown.size, -one.tokens, one.key)):
        best.setdefault(candidate.mask, candidate)
    return list(best.values())


def _refines(candidate: Candidate, other: Candidate, shows: NDArray[np.bool_], *, limit: float) -> bool:
    """Whether the candidate is unlikely among prefixes that show the other pattern; `shows` are the background's."""
    both = (candidate.mask & other.mask).bit_count()
    held = int(np.count_nonzero(shows[candidate.shown]))
    return log10_tail(both, other.mask.bit_count(), held, float(other.shown.size)) <= limit
