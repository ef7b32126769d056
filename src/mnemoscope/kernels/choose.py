"""Measures a batch of a dense layer on a GPU by the kernels of cards.py, without synchronising with the host.

PyTorch needs about eighty operations for it, a third of a forward pass's time (docs/log). The results are those of
PyTorch, except for the last digits of sums, whose order differs.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, HISTOGRAM_EDGES, ZERO_BIN

PROGRAMS = 4096
"""Approximate number of programs that sweep a block, enough for all units of a GPU."""
_MEMORIES_SWEPT = {torch.float32: 1024, torch.bfloat16: 512, torch.float16: 512}
"""Memories per program of the sweep, by the dtype of coefficients."""
CHOSEN, ROWS = 8, 128
"""Memories per program of `choose_best`, and the rows that it reads together."""
_MAX_KEPT, RANKED = 128, 16
"""The most triggers of a memory that `merge_best` ranks, and the new ones that it compares together."""


@dataclass(frozen=True)
class BatchRows:
    """The sentences of a batch, on the GPU: lengths without padded or skipped positions, ids, and the order of ids;
    `first` is the first position of each.
    """

    count: int
    positions: int
    lengths: Tensor
    sentences: Tensor
    order: Tensor
    first: int

    @classmethod
    def of(cls, lengths: Tensor, sentences: Tensor, *, positions: int, first: int = 0) -> "BatchRows":
        order = sentences.argsort().to(torch.int32)
        return cls(len(lengths), positions, lengths.to(torch.int32), sentences, order, first)


@dataclass(frozen=True)
class MemorySums:
    """Measures `[memory]` of so many positions; total and squares are float64. Squares and the histogram
    `[bin, memory]` are those of sampled batches only.
    """

    positions: int
    positive: Tensor
    total: Tensor
    least: Tensor
    greatest: Tensor
    squares: Tensor | None = None
    histogram: Tensor | None = None


class Best(NamedTuple):
    """The best triggers of a batch, `[memory, number]`; the first `found` entries of a memory are valid."""

    magnitude: Tensor
    sentence: Tensor
    position: Tensor
    found: Tensor


class CardKernels:
    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    @staticmethod
    def fit(keep: int, dtype: torch.dtype) -> bool:
        return keep <= _MAX_KEPT and dtype in _MEMORIES_SWEPT

    def measure(
        self, block: Tensor, rows: BatchRows, thresholds: Mapping[int, Tensor], *, keep: int, sampled: bool
    ) -> tuple[MemorySums, Best]:
        """The sums of a block `[row, place, memory]`, and the best rows of each memory that reach its threshold, sign
        by sign.
        """
        peaks, sums = self.sweep(block, rows, negative=-1 in thresholds, sampled=sampled)
        each = [self.best(peaks[sign], rows, threshold, sign=sign, keep=keep) for sign, threshold in thresholds.items()]
        return sums, Best(*map(torch.cat, zip(*each, strict=True)))

    def sweep(
        self, block: Tensor, rows: BatchRows, *, negative: bool, sampled: bool
    ) -> tuple[dict[int, tuple[Tensor, Tensor]], MemorySums]:
        """By sign the peaks of each row and their places, `[row, memory]`, and the sums of the block."""
        block = block if block.stride(2) == 1 else block.contiguous()
        memories, device = block.shape[2], block.device
        width = min(_MEMORIES_SWEPT[block.dtype], _power_of_two(memories))
        tiles = -(-memories // width)
        groups = min(rows.count, max(1, PROGRAMS // tiles))

        def empty(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(count, memories, dtype=dtype, device=device)

        signs = (1, -1) if negative else (1,)
        peaks = {sign: (empty(rows.count), empty(rows.count, torch.int32)) for sign in signs}
        greatest, least, fired = empty(groups), empty(groups), empty(groups, torch.int32)
        sums = empty(groups, torch.float64)
        squares = empty(groups, torch.float64) if sampled else sums  # not written
        counts = torch.zeros(HISTOGRAM_BINS, memories, dtype=torch.int32, device=device) if sampled else fired
        with _device_context(device):
            self._kernels.sweep_rows[tiles, groups](
                block,
                block.stride(0),
                block.stride(1),
                rows.lengths,
                rows.count,
                groups,
                memories,
                *peaks[1],
                *peaks[signs[-1]],
                greatest,
                least,
                fired,
                sums,
                squares,
                counts,
                NEGATIVE=negative,
                SAMPLED=sampled,
                ZERO=ZERO_BIN,
                BLOCK=width,
            )
        lowest = least.amin(0) if negative else least.amin(0) + 0.0  # of -0.0 it makes 0.0
        found = MemorySums(rows.positions, fired.sum(0), sums.sum(0), lowest, greatest.amax(0))
        if not sampled:
            return peaks, found
        histogram = counts.to(torch.int64)
        histogram[ZERO_BIN] = rows.positions - histogram.sum(0)
        return peaks, replace(found, squares=squares.sum(0), histogram=histogram)

    def best(self, peaks: tuple[Tensor, Tensor], rows: BatchRows, threshold: Tensor, *, sign: int, keep: int) -> Best:
        memories, device = peaks[0].shape[1], peaks[0].device
        best = Best(
            torch.empty(memories, keep, device=device),
            torch.empty(memories, keep, dtype=torch.int64, device=device),
            torch.empty(memories, keep, dtype=torch.int32, device=device),
            torch.empty(memories, dtype=torch.int32, device=device),
        )
        with _device_context(device):
            self._kernels.choose_best[(-(-memories // CHOSEN),)](
                *peaks,
                rows.order,
                rows.sentences,
                threshold,
                best.magnitude,
                best.sentence,
                best.position,
                best.found,
                rows.count,
                memories,
                keep,
                rows.first,
                SIGN=sign,
                ROWS=ROWS,
                BLOCK=CHOSEN,
            )
        return best

    def merge(self, kept: tuple[Tensor, Tensor, Tensor], best: Best) -> tuple[Tensor, Tensor, Tensor]:
        magnitude, sentence, position = (torch.empty_like(one) for one in kept)
        memories, keep = kept[0].shape
        with _device_context(magnitude.device):
            self._kernels.merge_best[(memories,)](
                *kept,
                best.magnitude,
                best.sentence,
                best.position,
                best.found,
                magnitude,
                sentence,
                position,
                keep,
                WIDTH=_power_of_two(keep),
                CHUNK=RANKED,
                num_warps=1,
            )
        return magnitude, sentence, position


@cache
def card_kernels(device: torch.device) -> CardKernels | None:
    """None without Triton, or if the kernels do not agree with PyTorch on this device."""
    if device.type != "cuda":
        return None
    try:
        from mnemoscope.kernels import cards as triton_kernels

        kernels = CardKernels(triton_kernels)
        return kernels if agrees_with_pytorch(kernels, device) else None
    except Exception:  # no Triton, no compiler for it, an unsupported GPU, or another obstacle
        return None


def agrees_with_pytorch(kernels: CardKernels, device: torch.device) -> bool:
    """Compares peaks, bins and best triggers of a small block."""
    block = torch.linspace(-3, 3, 7 * 5 * 32, device=device).view(7, 5, 32).roll(11, 1).sin()
    lengths, sentences = torch.full((7,), 5, device=device), torch.arange(7, device=device)
    rows = BatchRows.of(lengths, sentences.flip(0), positions=35)
    threshold = torch.full((32,), 2.0**-149, device=device)
    sums, best = kernels.measure(block, rows, {1: threshold, -1: threshold}, keep=4, sampled=True)
    empty = tuple(torch.zeros_like(one) for one in (best.magnitude, best.sentence, best.position))
    magnitude, _, _ = kernels.merge((empty[0], empty[1], empty[2]), best)
    highest = torch.cat([block, -block], 2).amax(1)
    bins = torch.bucketize(block, torch.tensor(HISTOGRAM_EDGES, dtype=torch.float32, device=device), right=True)
    assert sums.histogram is not None
    counted = torch.stack([(bins == number).sum((0, 1)) for number in range(HISTOGRAM_BINS)])
    return bool(
        torch.equal(magnitude, highest.clamp(min=0).sort(0, descending=True).values[:4].T)
        and torch.equal(sums.histogram, counted)
        and torch.allclose(sums.total, block.double().sum((0, 1)))
    )


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _device_context(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
