"""How many of ascending numbers lie below another one, told for many at once without a search.

A bit says of every number whether it occurs, and one count stands for every 64 of them: two looks and a count of bits,
where a bisection among millions would look at twenty places of memory. Pure: knows nothing of words or files.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD = 64


@dataclass(frozen=True)
class CountsBelow:
    """`bits` say which numbers occur; `before` how many different ones stand before each 64 bits; `rows` where the
    first of every different number stands, and behind all how many numbers there are.
    """

    bits: NDArray[np.uint64]
    before: NDArray[np.uint32]
    rows: NDArray[np.uint32]

    @staticmethod
    def of(numbers: NDArray[Any]) -> "CountsBelow":
        """Of numbers below 2 ** 32 that ascend; the same one may stand there several times."""
        fresh = np.ones(len(numbers), np.bool_)
        fresh[1:] = numbers[1:] != numbers[:-1]
        first = np.flatnonzero(fresh)
        different = numbers[first].astype(np.uint64)
        own, begin = np.unique(different // _WORD, return_index=True)
        bits = np.zeros(int(own[-1]) + 2 if len(own) else 1, np.uint64)
        if len(own):
            bits[own] = np.add.reduceat(np.uint64(1) << different % _WORD, begin)  # different bits: each once
        counts = np.bitwise_count(bits)
        before = np.cumsum(counts, dtype=np.uint32) - counts
        return CountsBelow(bits, before, np.append(first, len(numbers)).astype(np.uint32))

    def below(self, asked: NDArray[Any]) -> NDArray[np.int64]:
        """How many of the numbers are smaller than each that is asked for, none of which is below zero."""
        within = np.minimum(asked.astype(np.uint64), np.uint64(_WORD * len(self.bits) - 1))
        word = (within // _WORD).astype(np.int64)
        lower = self.bits[word] & ((np.uint64(1) << within % _WORD) - np.uint64(1))
        counted: NDArray[np.int64] = self.rows[self.before[word] + np.bitwise_count(lower)].astype(np.int64)
        return counted
