"""Measures a block of coefficients in PyTorch: extremes, counts, sums, histograms.

Works in slices that stay in the CPU's cache, so a block is read from memory once for all measures of `sweep`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, ZERO_BIN

SLICE, _DEVICE_SLICE = 1 << 18, 1 << 26
"""Coefficients per slice: on a CPU what its cache holds, elsewhere a moderate amount of memory."""
_LOWEST, _HIGHEST = 116, 133
"""Exponents of magnitudes below 2**-10 and from 2**6 on, the outermost edges."""


@dataclass(frozen=True)
class Swept:
    """Measures `[row, memory]` of rows of so many positions each: the highest and the lowest coefficient, how many are
    above zero, their sum and the sum of squares. Sums and squares are float64 in a sampled batch; else sums are float32
    and squares None.
    """

    positions: int
    peaks: Tensor
    lows: Tensor
    fired: Tensor
    sums: Tensor
    squares: Tensor | None

    def part(self, rows: slice) -> "Swept":
        squares = None if self.squares is None else self.squares[rows]
        return Swept(self.positions, self.peaks[rows], self.lows[rows], self.fired[rows], self.sums[rows], squares)


def sweep(block: Tensor, *, sampled: bool) -> Swept:
    """Measures a block `[row, position, memory]`."""
    rows, positions, memories = block.shape
    step = _rows_of_slice(block)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, memories, dtype=dtype, device=block.device)

    # float64, since a memory of nearly constant coefficients has a small variance beside large sums.
    sums, squares = empty(rows), None
    if sampled:
        sums, squares = empty(rows, dtype=torch.float64), empty(rows, dtype=torch.float64)
        wider = empty(step, positions, dtype=torch.float64)
    swept = Swept(positions, empty(rows), empty(rows), empty(rows), sums, squares)
    scratch = empty(step, positions)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        piece = block[part].float()  # a CPU sweeps 16-bit numbers two or three times slower
        # First a comparison, which reads sequentially: a maximum over positions would wait for every cache line.
        above = torch.gt(piece, 0, out=scratch[: len(piece)])
        torch.amax(piece, 1, out=swept.peaks[part])
        torch.amin(piece, 1, out=swept.lows[part])
        torch.sum(above, 1, out=swept.fired[part])
        if squares is None:
            torch.sum(piece, 1, out=sums[part])
        else:
            wide = wider[: len(piece)].copy_(piece)
            torch.sum(wide, 1, out=sums[part])
            torch.sum(wide.square_(), 1, out=squares[part])
    return swept


def count_bins(block: Tensor) -> Tensor:
    """How many coefficients of a block `[row, position, memory]` are in each bin: `[bin, memory]`."""
    memories = block.shape[2]
    counts = torch.zeros(HISTOGRAM_BINS * memories, dtype=torch.int64, device=block.device)
    memory = torch.arange(memories, dtype=torch.int32, device=block.device)
    for piece in torch.split(block, _rows_of_slice(block)):
        bits = (piece.float() + 0.0).view(torch.int32)  # turns -0.0 into 0.0
        below = bits >> 31
        # The bin follows from the exponent. A negative power of two is the end of its bin, so one is subtracted from
        # its bits.
        steps = ((bits + below) >> 23).bitwise_and_(255).clamp_(_LOWEST, _HIGHEST).sub_(_LOWEST)
        bins = steps.bitwise_xor_(below).add_(ZERO_BIN)  # below zero ZERO_BIN - 1 - steps
        counts += torch.bincount(bins.mul_(memories).add_(memory).flatten(), minlength=len(counts))
    return counts.view(HISTOGRAM_BINS, memories)


def _rows_of_slice(block: Tensor) -> int:
    size = SLICE if block.device.type == "cpu" else _DEVICE_SLICE
    return min(len(block), max(1, size // (block.shape[1] * block.shape[2])))
