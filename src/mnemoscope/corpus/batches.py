"""Group sentences into batches of similar length: little padding, a fixed order, any number of sentences.

Sentences are taken in windows in corpus order and sorted by length inside a window. A batch is filled as far as the
budget allows, but not more than one position in twenty of it may be padding, and it is rather cut at a change of length
once it is half full: a batch of one single length has no padding and needs no mask. Knows lengths only, no text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from mnemoscope.corpus.disk import MappedArray, storing
from mnemoscope.errors import OptionError

WINDOW: Final = 65_536
PADDING_SHARE: Final = 20
"""At most one position in so many is padding, in every single batch."""

Integers = NDArray[np.int64]


@final
class Batches:
    """The batches of a plan, in order; `ids(k)` are the sentences of batch `k`, sorted by (length, id)."""

    def __init__(self, order: NDArray[Any], ends: NDArray[Any], *, positions: int, padding: int) -> None:
        """Take the sentences of all batches in a row and where each batch ends."""
        self._order = order
        self._ends = ends
        self.count: int = len(ends)
        self.positions = positions
        """Positions computed in all, padding and beginning tokens included."""
        self.padding = padding
        """Positions computed in all that are padding."""

    def ids(self, k: int) -> Integers:
        """Return the sentence ids of batch `k` (0-based)."""
        if not 0 <= k < self.count:
            raise IndexError(f"batch {k} of {self.count}")
        start = int(self._ends[k - 1]) if k else 0
        return np.array(self._order[start : int(self._ends[k])], np.int64)


def plan_batches(
    lengths: NDArray[Any],
    *,
    batch_tokens: int,
    ids: NDArray[Any] | None = None,
    window: int = WINDOW,
    extra: int = 1,
    directory: Path | None = None,
) -> Batches:
    """Return the batches of the sentences whose token counts are `lengths`.

    No batch crosses a window, none has more than `batch_tokens` positions unless it is one sentence, and in none is
    more than a twentieth padding. The answer depends on nothing but the arguments.

    Args:
        lengths: tokens of every sentence to be mined, in corpus order.
        batch_tokens: positions of one batch at most, padding and `extra` included.
        ids: their sentence ids, ascending; 0, 1, 2 ... if left out.
        window: sentences that are sorted together.
        extra: positions before each sentence (1 for a beginning token, else 0).
        directory: where to keep the plan memory-mapped; in memory if left out.

    Raises:
        OptionError: `batch_tokens` or `window` below 1.
        StoreFailed: no room in `directory`.
    """
    if batch_tokens < 1 or window < 1:
        raise OptionError(f"batches of {batch_tokens} positions in windows of {window}: both must be at least 1")
    orders: list[Integers] = []
    ends: list[Integers] = []
    positions = padding = written = 0
    files = None if directory is None else (directory / "batch_order.bin", directory / "batch_ends.bin")
    if files is not None:
        with storing(files[0].parent):
            for path in files:
                path.write_bytes(b"")
    for start in range(0, len(lengths), window):
        stop = min(start + window, len(lengths))
        here = np.arange(start, stop) if ids is None else np.asarray(ids[start:stop], np.int64)
        widths = np.asarray(lengths[start:stop], np.int64) + extra
        order = np.argsort(widths, kind="stable")
        widths = widths[order]
        cuts = _cut(widths, batch_tokens)
        area = int((np.diff(cuts, prepend=0) * widths[cuts - 1]).sum())
        positions += area
        padding += area - int(widths.sum())
        orders.append(here[order])
        ends.append(cuts + written)
        written += len(order)
        if files is not None:
            _append(files, orders.pop(), ends.pop())
    if files is not None:
        order_map, ends_map = (MappedArray(path, "<i8") for path in files)
        return Batches(order_map.array, ends_map.array, positions=positions, padding=padding)
    empty = [np.zeros(0, np.int64)]
    return Batches(np.concatenate(orders or empty), np.concatenate(ends or empty), positions=positions, padding=padding)


def _append(files: tuple[Path, Path], order: Integers, ends: Integers) -> None:
    with storing(files[0].parent):
        for path, values in zip(files, (order, ends), strict=True):
            with path.open("ab") as file:
                file.write(values.astype("<i8").tobytes())


def _cut(widths: Integers, budget: int) -> Integers:
    """Return where the batches of one window end; `widths` ascend."""
    total = np.concatenate(([0], np.cumsum(widths)))
    # After each sentence: is the next one longer (or is there none)?
    changes = np.append(widths[1:] != widths[:-1], True)
    cuts: list[int] = []
    start = 0
    while start < len(widths):
        most = max(1, budget // int(widths[start]))
        counts = np.arange(1, min(most, len(widths) - start) + 1)
        longest = widths[start : start + len(counts)]
        areas = counts * longest
        spare = areas - (total[start + 1 : start + 1 + len(counts)] - total[start])
        fits = (areas <= budget) & (spare * PADDING_SHARE <= areas)
        fits[0] = True
        taken = int(np.flatnonzero(fits)[-1]) + 1
        if longest[taken - 1] != longest[0]:
            # A mixed batch: cut at the first change of length that leaves it at least half full (then it is
            # of one length where that is possible), else at the last change, so that the next batch starts a length.
            at = np.flatnonzero(fits[:taken] & changes[start : start + taken])
            half = at[2 * areas[at] >= budget]
            taken = int(half[0]) + 1 if len(half) else taken
        start += taken
        cuts.append(start)
    return np.array(cuts, np.int64)
