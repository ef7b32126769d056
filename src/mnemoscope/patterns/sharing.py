"""What the triggers of each memory of a layer share, counted: which key in how many of which prefix groups.

A memory's best 25 positive triggers are looked at, each prefix group once. Where several of them come from one sentence
(`--per-sentence all`) the sentence counts once, since its words would recur by themselves. Nothing is tested here.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.patterns.prefixes import Pairs
from mnemoscope.patterns.words import Integers, Keys, ranges


@dataclass(frozen=True)
class Groups:
    """The prefix groups of a layer's memories, by memory and rank; all arrays have one entry per group."""

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
    """The numbers of the memories that have triggers."""
    starts: Integers
    """Where each memory's groups begin; the last entry is the length."""

    def count_long(self, length: Integers, least: int) -> Integers:
        """For every memory how many of its groups count and have prefixes of more than `least` tokens."""
        long = self.counts & (length[self.prefix] > least)
        return np.add.reduceat(long, self.starts[:-1], dtype=np.int64) if long.size else np.zeros(0, dtype=np.int64)


def groups_of(triggers: pl.DataFrame) -> tuple[Groups, Integers, Integers]:
    """The prefix groups of a layer's best triggers, and the (sentence, position) of the prefixes that they name."""
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
class Shared:
    """Every (memory, key) that occurs, by memory: in how many groups that count, and in which."""

    memory: Integers
    key: Keys
    count: Integers
    mask: Integers
    """Bit g stands for the memory's group g."""

    def per_memory(self, memories: int) -> Integers:
        """How many different keys each memory's groups show: the number of patterns that can be tried."""
        return np.bincount(self.memory, minlength=memories)


def count_shared(groups: Groups, pairs: Pairs) -> Shared:
    """What the groups share."""
    index, flat = spread_pairs(groups, pairs)
    if not flat.size:
        nothing = np.zeros(0, dtype=np.int64)
        return Shared(nothing, nothing.astype(np.uint64), nothing, nothing)
    kinds, which = np.unique(pairs.keys[flat], return_inverse=True)
    code = groups.memory[index] * kinds.size + which
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    index = index[order]
    return Shared(
        ordered[starts] // kinds.size,
        kinds[ordered[starts] % kinds.size],
        np.add.reduceat(groups.counts[index], starts, dtype=np.int64),
        np.bitwise_or.reduceat(np.int64(1) << groups.place[index], starts),
    )


def spread_pairs(groups: Groups, pairs: Pairs) -> tuple[Integers, Integers]:
    """Every (group, key) by place: that of the group in `groups`, and that of the key in `pairs`."""
    return ranges(pairs.starts[groups.prefix], np.diff(pairs.starts)[groups.prefix])
