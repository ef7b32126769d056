"""Packs lists of ascending numbers as differences in seven bits per byte (variable-byte code).

All lists are in one array of bytes, in which list i ends at `ends[i]`. The first difference of a list is from zero, so
adjacent lists can be decoded together.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint32]
_CONTINUES, _BITS = 0x80, 7
_PAIRS_AT_A_TIME = 1 << 20


def pack(pairs: NDArray[np.uint64], count: int) -> tuple[Bytes, NDArray[np.int64]]:
    """The bytes and `ends` of `count` lists; `pairs` are `list << 32 | number`, sorted."""
    sizes = np.zeros(count, np.int64)
    pieces, before = [np.empty(0, np.uint8)], -1
    for begin in range(0, len(pairs), _PAIRS_AT_A_TIME):
        some = pairs[begin : begin + _PAIRS_AT_A_TIME]
        lists, numbers = (some >> np.uint64(32)).astype(np.int64), some.astype(np.uint32)
        steps = np.diff(numbers, prepend=numbers[:1])
        fresh = np.flatnonzero(np.diff(lists, prepend=before))
        if not len(fresh) or fresh[0]:
            steps[0] = numbers[0] - pairs[begin - 1].astype(np.uint32)
        steps[fresh] = numbers[fresh]
        before = int(lists[-1])
        lengths = np.ones(len(steps), np.uint8)
        for bits in range(_BITS, 32, _BITS):
            lengths += steps >= np.uint32(1 << bits)
        ends = np.cumsum(lengths, dtype=np.int64)
        packed = np.empty(int(ends[-1]), np.uint8)
        for at in range(int(lengths.max())):
            longer = np.flatnonzero(lengths > at)
            piece = (steps[longer] >> np.uint32(_BITS * at)) & np.uint32(_CONTINUES - 1)
            packed[ends[longer] - lengths[longer] + at] = piece | np.where(lengths[longer] > at + 1, _CONTINUES, 0)
        sizes += np.bincount(lists, lengths, count).astype(np.int64)
        pieces.append(packed)
    return np.concatenate(pieces), np.cumsum(sizes)


def unpack(packed: Bytes, ends: NDArray[np.int64], first: int, last: int) -> Numbers:
    """The numbers of the lists `first` to `last` (included), ascending within each."""
    begin = int(ends[first - 1]) if first else 0
    some = packed[begin : int(ends[last])]
    if not some.size:
        return np.empty(0, np.uint32)
    stops = np.flatnonzero(some < _CONTINUES)
    if len(stops) == len(some):
        steps = some.astype(np.uint32)
    else:
        starts = np.concatenate([[0], stops[:-1] + 1])
        lengths = stops - starts
        steps = (some[starts] & (_CONTINUES - 1)).astype(np.uint32)
        longer = np.flatnonzero(lengths)
        for at in range(1, int(lengths.max()) + 1):
            longer = longer[lengths[longer] >= at]
            piece = some[starts[longer] + at] & (_CONTINUES - 1)
            steps[longer] |= piece.astype(np.uint32) << np.uint32(_BITS * at)
    numbers = np.cumsum(steps, dtype=np.uint32)
    if first < last:
        own = np.searchsorted(stops, np.asarray(ends[first:last]) - begin)  # the start of every list but the first
        before = np.concatenate([np.zeros(1, np.uint32), numbers])[np.concatenate([[0], own])]
        numbers -= np.repeat(before, np.diff(np.concatenate([[0], own, [len(numbers)]])))
    return numbers
