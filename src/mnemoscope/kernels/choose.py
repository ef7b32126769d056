"""A batch of a dense layer measured on a graphics card, in three kernels (triton_kernels.py), and never looked at.

PyTorch takes some eighty operations for it, most of them passes of their own over all coefficients or all peaks, and
sorts what may be among the best: a third of the time of a forward pass (LOG.md). Here a block is fetched once; of what
reaches a memory's threshold the best are written behind one another, and merged into those that are kept. The numbers
are those of PyTorch's way, but for the last digits of sums, whose order is another. Where Triton is not, or does not
do what it should, `card_kernels` is None, and PyTorch does it all.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, HISTOGRAM_EDGES, ZERO_BIN

PROGRAMS = 4096
"""Programs that sweep a block, about: rows are dealt out to so many that all of a card's units are at work."""
_SWEPT = {torch.float32: 1024, torch.bfloat16: 512, torch.float16: 512}
"""Memories that one program sweeps, by the format of a coefficient."""
CHOSEN, ROWS = 8, 128
"""Memories that one program chooses for, and the rows that it looks at together."""
_MOST_KEPT, RANKED = 128, 16
"""Triggers of a memory that one program ranks, and new ones that it looks at together."""


@dataclass(frozen=True)
class BatchRows:
    """The sentences of a batch, on the card: `lengths` without what is padded or skipped, ids, and the order of ids."""

    count: int
    positions: int
    lengths: Tensor
    sentences: Tensor
    order: Tensor

    @classmethod
    def of(cls, lengths: Tensor, sentences: Tensor, *, positions: int) -> "BatchRows":
        """Of `lengths [row]` and ids `sentences [row]`, both on the card."""
        order = sentences.argsort().to(torch.int32)
        return cls(len(lengths), positions, lengths.to(torch.int32), sentences, order)


@dataclass(frozen=True)
class SweptRows:
    """What is read off all rows: `[row, memory]`, of sign -1 only where it was asked for, and `[group, memory]`."""

    peaks: dict[int, tuple[Tensor, Tensor]]
    """Of each sign the coefficients farthest out and their first places."""
    greatest: Tensor
    least: Tensor
    fired: Tensor
    sums: Tensor
    squares: Tensor | None
    histogram: Tensor | None
    """`[memory, bin]`"""


@dataclass(frozen=True)
class Best:
    """The best of a batch, `[memory, number]`, of which every memory has `found`; what is behind them says nothing."""

    magnitude: Tensor
    sentence: Tensor
    position: Tensor
    found: Tensor


class CardKernels:
    """Calls the kernels, on the card that the numbers lie on."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    @staticmethod
    def fit(keep: int, dtype: torch.dtype) -> bool:
        """Whether so many triggers of a memory can be kept, and coefficients of this format be read."""
        return keep <= _MOST_KEPT and dtype in _SWEPT

    def sweep(self, block: Tensor, rows: BatchRows, *, negative: bool, sampled: bool) -> SweptRows:
        """Reads `block [row, place, memory]` of a batch's coefficients, from each row's first candidate on."""
        block = block if block.stride(2) == 1 else block.contiguous()
        memories, device = block.shape[2], block.device
        width = min(_SWEPT[block.dtype], _power_of_two(memories))
        tiles = -(-memories // width)
        groups = min(rows.count, max(1, PROGRAMS // tiles))

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        peaks = {
            sign: (room(rows.count, memories), room(rows.count, memories, dtype=torch.int32))
            for sign in ((1, -1) if negative else (1,))
        }
        swept = SweptRows(
            peaks, room(groups, memories), room(groups, memories), room(groups, memories, dtype=torch.int32),
            room(groups, memories, dtype=torch.float64),
            room(groups, memories, dtype=torch.float64) if sampled else None, None,
        )  # fmt: skip
        counts = torch.zeros(HISTOGRAM_BINS, memories, dtype=torch.int32, device=device) if sampled else None
        with _on(device):
            self._kernels.sweep_rows[tiles, groups](
                block, block.stride(0), block.stride(1), rows.lengths, rows.count, groups, memories,
                *peaks[1], *peaks[-1 if negative else 1], swept.greatest, swept.least, swept.fired, swept.sums,
                swept.sums if swept.squares is None else swept.squares,
                swept.fired if counts is None else counts,
                NEGATIVE=negative, SAMPLED=sampled, ZERO=ZERO_BIN, BLOCK=width,
            )  # fmt: skip
        return swept if counts is None else replace(swept, histogram=_with_zeros(counts, rows.positions))

    def best(
        self, peaks: tuple[Tensor, Tensor], rows: BatchRows, threshold: Tensor, *, sign: int, keep: int, first: int
    ) -> Best:
        """The best of the rows' peaks; `first` is the position number of the first place."""
        memories, device = peaks[0].shape[1], peaks[0].device
        best = Best(
            torch.empty(memories, keep, device=device),
            torch.empty(memories, keep, dtype=torch.int64, device=device),
            torch.empty(memories, keep, dtype=torch.int32, device=device),
            torch.empty(memories, dtype=torch.int32, device=device),
        )
        with _on(device):
            self._kernels.choose_best[(-(-memories // CHOSEN),)](
                *peaks, rows.order, rows.sentences, threshold, best.magnitude, best.sentence, best.position, best.found,
                rows.count, memories, keep, first,
                SIGN=sign, ROWS=ROWS, BLOCK=CHOSEN,
            )  # fmt: skip
        return best

    def merge(self, own: tuple[Tensor, Tensor, Tensor], best: Best) -> tuple[Tensor, Tensor, Tensor]:
        """The best of a state's magnitudes, sentences and positions `[memory, rank]` and of a batch."""
        magnitude, sentence, position = (torch.empty_like(one) for one in own)
        memories, keep = own[0].shape
        with _on(magnitude.device):
            self._kernels.merge_best[(memories,)](
                *own, best.magnitude, best.sentence, best.position, best.found, magnitude, sentence, position, keep,
                WIDTH=_power_of_two(keep), CHUNK=RANKED, num_warps=1,
            )  # fmt: skip
        return magnitude, sentence, position


@cache
def card_kernels(device: torch.device) -> CardKernels | None:
    """The kernels, where they run on this device and do what they should; None elsewhere."""
    if device.type != "cuda":
        return None
    try:
        from mnemoscope.kernels import cards as triton_kernels

        found = CardKernels(triton_kernels)
        return found if agrees_with_pytorch(found, device) else None
    except Exception:  # no Triton, no compiler that it needs, a card that it does not know: whatever is in its way
        return None


def agrees_with_pytorch(kernels: CardKernels, device: torch.device) -> bool:
    """Whether peaks, bins and the best of a small block are what PyTorch finds."""
    block = torch.linspace(-3, 3, 7 * 5 * 32, device=device).view(7, 5, 32).roll(11, 1).sin()
    lengths, sentences = torch.full((7,), 5, device=device), torch.arange(7, device=device)
    rows = BatchRows.of(lengths, sentences.flip(0), positions=35)
    swept = kernels.sweep(block, rows, negative=True, sampled=True)
    threshold = torch.full((32,), 2.0**-149, device=device)
    best = kernels.best(swept.peaks[1], rows, threshold, sign=1, keep=4, first=0)
    empty = tuple(torch.zeros_like(one) for one in (best.magnitude, best.sentence, best.position))
    magnitude, _, _ = kernels.merge((empty[0], empty[1], empty[2]), best)
    edges = torch.tensor(HISTOGRAM_EDGES, dtype=torch.float32, device=device)
    bins = torch.bucketize(block, edges, right=True)
    assert swept.histogram is not None
    counted = torch.stack([(bins == number).sum((0, 1)) for number in range(HISTOGRAM_BINS)])
    return bool(
        torch.equal(magnitude, block.amax(1).clamp(min=0).sort(0, descending=True).values[:4].T)
        and torch.equal(swept.histogram, counted.T)
        and torch.allclose(swept.sums.sum(0), block.double().sum((0, 1)))
    )


def _with_zeros(counts: Tensor, positions: int) -> Tensor:
    """The counts `[bin, memory]` of all bins but that of zero as `[memory, bin]` of all."""
    counts = counts.to(torch.int64)
    counts[ZERO_BIN] = positions - counts.sum(0)
    return counts.T.contiguous()


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _on(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
