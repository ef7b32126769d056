"""Measures a batch of a dense layer on a GPU by the kernels of cards.py, without synchronising with the host.

PyTorch needs about eighty operations for it, a third of a forward pass's time (docs/log). The results are those of
PyTorch, except for the last digits of sums, whose order differs.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

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
    """The sentences of a batch, on the GPU: lengths without padded or skipped positions, ids, and the order of ids."""

    count: int
    positions: int
    lengths: Tensor
    sentences: Tensor
    order: Tensor

    @classmethod
    def of(cls, lengths: Tensor, sentences: Tensor, *, positions: int) -> "BatchRows":
        order = sentences.argsort().to(torch.int32)
        return cls(len(lengths), positions, lengths.to(torch.int32), sentences, order)


@dataclass(frozen=True)
class SweptRows:
    """`peaks` by sign are `[row, memory]`, the other measures `[group, memory]`."""

    peaks: dict[int, tuple[Tensor, Tensor]]
    greatest: Tensor
    least: Tensor
    fired: Tensor
    sums: Tensor
    squares: Tensor | None
    histogram: Tensor | None
    """`[memory, bin]`"""


@dataclass(frozen=True)
class Best:
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

    def sweep(self, block: Tensor, rows: BatchRows, *, negative: bool, sampled: bool) -> SweptRows:
        """`block` is `[row, place, memory]`; place 0 is each row's first candidate."""
        block = block if block.stride(2) == 1 else block.contiguous()
        memories, device = block.shape[2], block.device
        width = min(_MEMORIES_SWEPT[block.dtype], _power_of_two(memories))
        tiles = -(-memories // width)
        groups = min(rows.count, max(1, PROGRAMS // tiles))

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        peaks = {
            sign: (empty(rows.count, memories), empty(rows.count, memories, dtype=torch.int32))
            for sign in ((1, -1) if negative else (1,))
        }
        swept = SweptRows(
            peaks,
            empty(groups, memories),
            empty(groups, memories),
            empty(groups, memories, dtype=torch.int32),
            empty(groups, memories, dtype=torch.float64),
            empty(groups, memories, dtype=torch.float64) if sampled else None,
            None,
        )
        counts = torch.zeros(HISTOGRAM_BINS, memories, dtype=torch.int32, device=device) if sampled else None
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
                *peaks[-1 if negative else 1],
                swept.greatest,
                swept.least,
                swept.fired,
                swept.sums,
                swept.sums if swept.squares is None else swept.squares,
                swept.fired if counts is None else counts,
                NEGATIVE=negative,
                SAMPLED=sampled,
                ZERO=ZERO_BIN,
                BLOCK=width,
            )
        if counts is None:
            return swept
        histogram = counts.to(torch.int64)
        histogram[ZERO_BIN] = rows.positions - histogram.sum(0)
        return replace(swept, histogram=histogram.T.contiguous())

    def best(
        self, peaks: tuple[Tensor, Tensor], rows: BatchRows, threshold: Tensor, *, sign: int, keep: int, first: int
    ) -> Best:
        """`first` is the position of place 0."""
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
                first,
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
    swept = kernels.sweep(block, rows, negative=True, sampled=True)
    threshold = torch.full((32,), 2.0**-149, device=device)
    best = kernels.best(swept.peaks[1], rows, threshold, sign=1, keep=4, first=0)
    empty = tuple(torch.zeros_like(one) for one in (best.magnitude, best.sentence, best.position))
    magnitude, _, _ = kernels.merge((empty[0], empty[1], empty[2]), best)
    bins = torch.bucketize(block, torch.tensor(HISTOGRAM_EDGES, dtype=torch.float32, device=device), right=True)
    assert swept.histogram is not None
    counted = torch.stack([(bins == number).sum((0, 1)) for number in range(HISTOGRAM_BINS)])
    return bool(
        torch.equal(magnitude, block.amax(1).clamp(min=0).sort(0, descending=True).values[:4].T)
        and torch.equal(swept.histogram, counted.T)
        and torch.allclose(swept.sums.sum(0), block.double().sum((0, 1)))
    )


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _device_context(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
