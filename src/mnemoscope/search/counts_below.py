"""How many of ascending numbers lie below another one, told for many at once without a search.

A bit says of every number whether it occurs, and one count stands for every 64 of them: two looks and a count of bits,
where a bisection among millions would look at twenty places of memory. Pure: knows nothing of words or files.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHIFT, _WITHIN, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)


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
        first = _first_of_each(numbers)
        different = numbers[first].astype(np.uint64)
        word = different >> _SHIFT
        begin = _first_of_each(word)
        bits = np.zeros(int(word[-1]) + 2 if len(word) else 1, np.uint64)
        if len(word):
            bits[word[begin]] = np.add.reduceat(_ONE << (different & _WITHIN), begin)  # different bits: each once
        counts = np.bitwise_count(bits)
        before = np.cumsum(counts, dtype=np.uint32) - counts
        return CountsBelow(bits, before, np.append(first, len(numbers)).astype(np.uint32))

    def below(self, asked: NDArray[Any]) -> NDArray[np.int64]:
        """How many of the numbers are smaller than each that is asked for, none of which is below zero."""
        within = np.minimum(asked.astype(np.uint64), np.uint64((len(self.bits) << 6) - 1))
        word = (within >> _SHIFT).astype(np.int64)
        lower = self.bits[word] & ((_ONE << (within & _WITHIN)) - _ONE)
        counted: NDArray[np.int64] = self.rows[self.before[word] + np.bitwise_count(lower)].astype(np.int64)
        return counted


def _first_of_each(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Where in ascending numbers the first of every different one stands."""
    fresh = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)
