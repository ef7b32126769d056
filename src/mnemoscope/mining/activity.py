"""How often, how strongly and how unevenly the memories of one layer fire (definitions.md section 4, Fig. 7).

Over all positions: how many, how many above zero, sum, least and greatest. Over the sampled batches of the plan also
the sum of squares and a histogram. As for triggers, an Observer measures a batch and `add` counts it.

Sums merge exactly: a batch's sum is split into its integer part and its fraction in units of 2**-40, and these are
added as integers. Floating-point addition is not associative; this is.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mnemoscope.memory import HISTOGRAM_BINS
from mnemoscope.mining.histogram import BinCounter
from mnemoscope.mining.host import may_look
from mnemoscope.mining.sweep_threads import SweepThreads

FRACTION = 1 << 40
_SLICE, _DEVICE_SLICE = 1 << 17, 1 << 26
"""Coefficients measured at a time: on a CPU half a MiB, which stays in its cache, elsewhere what takes some memory."""


@dataclass(frozen=True)
class Measured:
    """One batch, or a part of it: everything `[memory]`; the sums in float64."""

    positions: int
    positive: Tensor
    total: Tensor
    least: Tensor
    greatest: Tensor
    squares: Tensor | None
    histogram: Tensor | None

    def finite(self) -> Tensor:
        """Whether no coefficient of the batch was NaN or infinite, as one boolean."""
        return torch.isfinite(self.total).all()


class Observer:
    """Measures blocks of coefficients; keeps a little room that every block uses again.

    A block is swept in slices that stay in the processor's cache, so it is fetched from memory once for all measures.
    """

    def __init__(self) -> None:
        self._room: dict[torch.dtype, Tensor] = {}
        self._bins: dict[tuple[int, bool], BinCounter] = {}
        self._threads = {sampled: SweepThreads() for sampled in (False, True)}

    def forget(self) -> None:
        """Forgets bins of blocks whose last one has not come."""
        for counter in self._bins.values():
            counter.forget()

    def observe(
        self, block: Tensor, *, negative: bool, sampled: bool, last: bool = True
    ) -> tuple[Tensor, Tensor | None, Measured]:
        """Sentence maxima `[batch, memory]`, minima (None unless `negative`), and what the block adds.

        `block [batch, position, memory]` holds the coefficients of whole sentences of one length. Without `negative`
        (the activation cannot go below zero) minima are looked for only in memories that fired everywhere. Of several
        blocks of one layer the `last` has the histogram of all.
        """
        batch, positions, memories = block.shape
        count = batch * positions
        peaks = torch.empty(batch, memories, dtype=block.dtype, device=block.device)
        lows = torch.empty_like(peaks) if negative else None
        # Of sampled batches both sums are float64: the deviation is their difference, and float32 would lose that of a
        # steady memory.
        sums = torch.empty(batch, memories, device=block.device, dtype=torch.float64 if sampled else torch.float32)
        squares = torch.empty_like(sums) if sampled else None
        fired = torch.empty(batch, memories, device=block.device)
        look = may_look(block.device)
        with self._threads[sampled].choose(block.numel()) if look else nullcontext():
            self._sweep(block, peaks, lows, fired, sums, squares)
        positive = fired.sum(0, dtype=torch.float64).to(torch.int64)
        total = sums.sum(0, dtype=torch.float64)
        if lows is None and not look:
            least = block.amin((0, 1)).float()
        elif lows is None:
            least = torch.zeros(memories, device=block.device)
            always = (positive == count).nonzero()[:, 0]
            if len(always):
                least[always] = block[:, :, always].amin((0, 1)).float()
        else:
            least = lows.amin(0).float()
        most = peaks.amax(0).float()
        if squares is None:
            return peaks, lows, Measured(count, positive, total, least, most, None, None)
        histogram = self._counter(memories, negative, block.device).take() if last else None
        return peaks, lows, Measured(count, positive, total, least, most, squares.sum(0), histogram)

    def _sweep(
        self,
        block: Tensor,
        peaks: Tensor,
        lows: Tensor | None,
        fired: Tensor,
        sums: Tensor,
        squares: Tensor | None,
    ) -> None:
        """Fills what is read off every sentence, all `[batch, memory]`; counts bins where squares are asked for."""
        batch, positions, memories = block.shape
        step = max(1, (_SLICE if may_look(block.device) else _DEVICE_SLICE) // (positions * memories))
        for start in range(0, batch, step):
            part = slice(start, start + step)
            piece = block[part]
            torch.amax(piece, 1, out=peaks[part])
            above = torch.gt(piece, 0, out=self._scratch(piece, piece.dtype))
            torch.sum(above, 1, dtype=torch.float32, out=fired[part])
            if squares is None:
                torch.sum(piece, 1, dtype=torch.float32, out=sums[part])
            else:
                wide = self._scratch(piece, torch.float64).copy_(piece)
                torch.sum(wide, 1, out=sums[part])
                torch.sum(wide.square_(), 1, out=squares[part])
                self._counter(memories, lows is not None, block.device).add(piece)
            if lows is not None:
                torch.amin(piece, 1, out=lows[part])

    def _scratch(self, piece: Tensor, dtype: torch.dtype) -> Tensor:
        """Room of the shape of `piece`."""
        room, size = self._room.get(dtype), piece.numel()
        if room is None or len(room) < size:
            room = self._room[dtype] = torch.empty(size, dtype=dtype, device=piece.device)
        return room[:size].view(piece.shape)

    def _counter(self, memories: int, negative: bool, device: torch.device) -> BinCounter:
        if (memories, negative) not in self._bins:
            self._bins[memories, negative] = BinCounter(memories, negative=negative, device=device)
        return self._bins[memories, negative]


class Activity:
    """Running counts of one layer, all `[memory]` but the histogram; `merge` is associative and commutative."""

    def __init__(self, memories: int, *, device: torch.device | str = "cpu") -> None:
        self.prefixes = torch.zeros(1, dtype=torch.int64, device=device)
        self.sampled = torch.zeros(1, dtype=torch.int64, device=device)
        self.positive = torch.zeros(memories, dtype=torch.int64, device=device)
        self.least = torch.full((memories,), torch.inf, device=device)
        self.greatest = torch.full((memories,), -torch.inf, device=device)
        self.total = torch.zeros(2, memories, dtype=torch.int64, device=device)
        self.sampled_total = torch.zeros(2, memories, dtype=torch.int64, device=device)
        self.squares = torch.zeros(2, memories, dtype=torch.int64, device=device)
        self.histogram = torch.zeros(memories, HISTOGRAM_BINS, dtype=torch.int64, device=device)

    def add(self, batch: list[Measured]) -> None:
        """Counts one batch, given in blocks; its sum over blocks is what is put on the grid."""
        self.prefixes += sum(m.positions for m in batch)
        total = _sum([m.total for m in batch])
        self.positive += _sum([m.positive for m in batch])
        self.total += _grid(total)
        self.least = torch.stack([self.least, *(m.least for m in batch)]).amin(0)
        self.greatest = torch.stack([self.greatest, *(m.greatest for m in batch)]).amax(0)
        squares = [m.squares for m in batch if m.squares is not None]
        if squares:
            self.sampled += sum(m.positions for m in batch)
            self.sampled_total += _grid(total)
            self.squares += _grid(_sum(squares))
            self.histogram += _sum([m.histogram for m in batch if m.histogram is not None])

    def merge(self, other: Self) -> None:
        """Adds another accumulator of the same memories."""
        for name in ("prefixes", "sampled", "positive", "total", "sampled_total", "squares", "histogram"):
            getattr(self, name).add_(getattr(other, name))
        self.least = torch.minimum(self.least, other.least)
        self.greatest = torch.maximum(self.greatest, other.greatest)

    def mean(self) -> Tensor:
        """The mean coefficient `[memory]` over all positions, float64; zero where there was none."""
        return _number(self.total) / self.prefixes.clamp(min=1)

    def deviation(self) -> Tensor:
        """The population standard deviation `[memory]` over the sampled positions, float64."""
        count = self.sampled.clamp(min=1)
        mean = _number(self.sampled_total) / count
        return (_number(self.squares) / count - mean.square()).clamp(min=0).sqrt()

    def columns(self) -> dict[str, Any]:
        """The columns of `activity`."""
        memories = len(self.positive)
        return {
            "memory": np.arange(memories, dtype=np.int32),
            "prefixes": np.full(memories, int(self.prefixes), np.int64),
            "positive": self.positive.cpu().numpy(),
            "mean": self.mean().cpu().numpy(),
            "min": torch.where(self.prefixes > 0, self.least, 0).cpu().numpy(),
            "max": torch.where(self.prefixes > 0, self.greatest, 0).cpu().numpy(),
            "sampled": np.full(memories, int(self.sampled), np.int64),
            "std": self.deviation().cpu().numpy(),
            "histogram": self.histogram.cpu().numpy(),
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint holds; `load` takes them back."""
        return dict(vars(self))

    def load(self, state: dict[str, Tensor]) -> None:
        """Becomes the accumulator whose `state` this is."""
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)


def _sum(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors).sum(0)


def _grid(total: Tensor) -> Tensor:
    """Float64 `[memory]` as integers `[2, memory]`: whole part, and fraction in units of 2**-40."""
    whole = total.floor()
    return torch.stack([whole.to(torch.int64), ((total - whole) * FRACTION).round().to(torch.int64)])


def _number(grid: Tensor) -> Tensor:
    return grid[0].double() + grid[1].double() / FRACTION
