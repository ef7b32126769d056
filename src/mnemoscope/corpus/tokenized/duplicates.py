"""Finds exact repeats among any number of texts by their 128-bit hashes, in constant memory.

The hashes lie in a file in corpus order. They are spilled to disk once more, grouped by their leading bits into buckets
of some tens of thousands (24 bytes each: hash and serial number), and each bucket is sorted in memory. The result is
four bytes per text, on disk and mapped: how often the text occurs, or 0 if it occurred before.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mnemoscope.corpus.tokenized.tokenized_corpus import Integers, MappedArray

Hashes = NDArray[np.uint64]
"""`[text, 2]`: the two halves of a 128-bit hash."""

CHUNK = 1 << 15
BUCKET = 1 << 14
"""Hashes that one bucket holds, about."""
_MOST_BUCKETS = 1 << 12
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("serial", "<i8")])


def text_hashes(texts: Iterable[str]) -> Hashes:
    """The hashes of the stripped texts; equal hashes count as equal texts."""
    digests = b"".join(hashlib.blake2b(text.strip().encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def count_repeats(
    read: Callable[[int, int], Hashes], count: int, *, directory: Path, name: str = "repeats.bin"
) -> MappedArray:
    """For each text how often it occurs in all if it is the first of its kind, and 0 if it is a repeat; uint32, in the
    file `name`. `read` returns the hashes of the texts from one serial number up to another.
    """
    spilled, result = directory / f"{name}.spill", directory / name
    _allocate(result, 4 * count)
    repeats = MappedArray(result, "<u4", writable=True)
    try:
        ends = _spill(read, count, path=spilled)
        with spilled.open("rb") as file:
            for size in np.diff(ends, prepend=0):
                if not size:
                    continue
                entries = np.fromfile(file, _ENTRY, int(size))
                # A bucket is in serial order and the sort is stable, so the first of a group is the first occurrence.
                order = np.lexsort((entries["low"], entries["high"]))
                high, low = entries["high"][order], entries["low"][order]
                differs = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
                starts = np.flatnonzero(np.concatenate(([True], differs)))
                repeats.array[entries["serial"][order[starts]]] = np.diff(starts, append=len(order))
                repeats.release()
    finally:
        spilled.unlink(missing_ok=True)
    return repeats


def _spill(read: Callable[[int, int], Hashes], count: int, *, path: Path) -> Integers:
    """Writes all entries grouped by bucket; returns where each bucket ends, in entries."""
    buckets = 2
    while buckets * BUCKET < count and buckets < _MOST_BUCKETS:
        buckets *= 2
    shift = np.uint64(65 - buckets.bit_length())
    sizes = np.zeros(buckets, np.int64)
    for start in range(0, count, CHUNK):
        sizes += np.bincount(_bucket(read(start, min(start + CHUNK, count)), shift), minlength=buckets)
    ends = np.cumsum(sizes)
    cursors = ends - sizes
    _allocate(path, count * _ENTRY.itemsize)
    with path.open("r+b") as file:
        for start in range(0, count, CHUNK):
            hashes = read(start, min(start + CHUNK, count))
            bucket = _bucket(hashes, shift)
            order = np.argsort(bucket, kind="stable")
            entries = np.empty(len(hashes), _ENTRY)
            entries["high"], entries["low"] = hashes[order, 0], hashes[order, 1]
            entries["serial"] = order + start
            occurring, firsts = np.unique(bucket[order], return_index=True)
            for which, first, last in zip(occurring, firsts, [*firsts[1:], len(entries)], strict=True):
                os.pwrite(file.fileno(), entries[first:last].tobytes(), int(cursors[which]) * _ENTRY.itemsize)
                cursors[which] += last - first
    return ends


def _bucket(hashes: Hashes, shift: np.uint64) -> Integers:
    return (hashes[:, 0] >> shift).astype(np.int64)


def _allocate(path: Path, size: int) -> None:
    """Makes a file of zeros whose disk space is reserved (OSError without): a mapped file without would kill the
    process.
    """
    with path.open("wb") as file:
        if sys.platform == "linux" and size:
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS has no such call
            for start in range(0, size, 1 << 20):
                file.write(bytes(min(1 << 20, size - start)))
