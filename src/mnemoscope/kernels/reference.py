"""Measures a block of coefficients in PyTorch: extremes, counts, sums, histograms.

Works in slices that stay in the CPU's cache, so a block is read from memory once for all measures.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, ZERO_BIN
from mnemoscope.kernels.devices import may_look

_SLICE, _DEVICE_SLICE = 1 << 18, 1 << 26
"""Coefficients per slice: on a CPU what its cache holds, elsewhere a moderate amount of memory."""


_LOWEST, _HIGHEST = 116, 133
"""Exponents of magnitudes below 2**-10 and from 2**6 on, the outermost edges."""
_BELOW_ZERO = 32
"""Added to the byte of a negative coefficient."""
_ROWS = 255
"""Positions that a byte can count; a multiple is counted at a time."""
WAITING_BYTES, WAITING_DEVICE_BYTES = 1 << 20, 1 << 26
"""Bytes buffered before they are counted: on a CPU what its cache holds, elsewhere more, for fewer steps."""


class BinCounter:
    """Without `negative`, no coefficient may be below zero."""

    def __init__(self, memories: int, *, negative: bool, device: torch.device) -> None:
        self.memories, self.negative = memories, negative
        self._width = -(-memories // 8) * 8
        size = WAITING_BYTES if may_look(device) else WAITING_DEVICE_BYTES
        rows = max(1, size // (_ROWS * self._width)) * _ROWS
        self._bins = torch.zeros(rows, self._width, dtype=torch.uint8, device=device)
        self._equal = torch.empty_like(self._bins)
        self._filled = self._rows = 0
        self._counts = torch.zeros(HISTOGRAM_BINS, memories, dtype=torch.int64, device=device)

    def add(self, block: Tensor) -> None:
        """`block` is `[batch, position, memory]`."""
        batch, positions, _ = block.shape
        self._rows += batch * positions
        for start in range(0, positions, len(self._bins)):  # a sentence may be longer than the buffer
            part = block[:, start : start + len(self._bins)]
            while len(part):
                taken = (len(self._bins) - self._filled) // part.shape[1]
                if not taken:
                    self._count()
                    continue
                self._write(part[:taken].float())
                part = part[taken:]

    def forget(self) -> None:
        """Discards what was added since the last `take`."""
        self._filled = self._rows = 0
        with torch.inference_mode():  # the counts are inference tensors if a model's forward made them
            self._counts.zero_()

    def take(self) -> Tensor:
        """The counts `[memory, bin]` of everything added since the last call."""
        self._count()
        counts = self._counts.clone()
        counts[ZERO_BIN] = self._rows - counts.sum(0)
        self.forget()
        return counts.T.contiguous()

    def _write(self, block: Tensor) -> None:
        """Appends the exponents, plus BELOW_ZERO if negative; the buffer must have room. A negative power of two is the
        end of its bin, so one is subtracted from its bits.
        """
        begin = self._filled
        self._filled += block.shape[0] * block.shape[1]
        free = self._bins[begin : self._filled].view(*block.shape[:2], self._width)[:, :, : self.memories]
        if not self.negative:
            free.copy_(block.view(torch.int32) >> 23).clamp_(_LOWEST, _HIGHEST)
            return
        bits = (block + 0.0).view(torch.int32)  # turns -0.0 into 0.0
        below = bits >> 31
        free.copy_((bits + below).bitwise_right_shift_(23)).clamp_(_LOWEST, _HIGHEST)
        free.add_(below.to(torch.uint8).bitwise_and_(_BELOW_ZERO))

    def _count(self) -> None:
        if not self._filled:
            return
        filled = -(-self._filled // _ROWS) * _ROWS if self._filled > _ROWS else self._filled
        bins, equal = self._bins[:filled], self._equal[:filled]
        bins[self._filled :].fill_(_LOWEST)
        least, most = (int(end) for end in bins.aminmax()) if may_look(bins.device) else (0, 255)
        occurring = {byte: index for byte, index in _INDEX.items() if least <= byte <= most}
        lanes = equal.view(torch.int64).view(-1, min(filled, _ROWS), self._width // 8)
        sums = lanes.new_empty(len(occurring), len(lanes), self._width // 8)
        for byte, lane_sums in zip(occurring, sums, strict=True):
            torch.eq(bins, byte, out=equal)
            torch.sum(lanes, 1, out=lane_sums)
        self._counts[list(occurring.values())] += sums.view(torch.uint8)[:, :, : self.memories].sum(1)
        self._filled = 0


_INDEX = {_LOWEST + step: ZERO_BIN + step for step in range(1, _HIGHEST - _LOWEST + 1)} | {
    _LOWEST + _BELOW_ZERO + step: ZERO_BIN - 1 - step for step in range(_HIGHEST - _LOWEST + 1)
}
"""The bin of each byte, except the zero bin's."""


@dataclass(frozen=True)
class Swept:
    """Measures `[sentence, memory]` of sentences of one length, and the minimum `least [memory]`. `lows` is None if no
    coefficient is negative. Sums and squares are float64 in a sampled batch; else sums are float32 and squares None.
    """

    length: int
    peaks: Tensor
    lows: Tensor | None
    fired: Tensor
    sums: Tensor
    squares: Tensor | None
    least: Tensor

    def with_peaks_of(self, block: Tensor | None) -> "Swept":
        """With the peaks and lows of `block [sentence, position, memory]`, unless it is None."""
        if block is None:
            return self
        lows = None if self.lows is None else block.amin(1).to(self.lows.dtype)
        return replace(self, peaks=block.amax(1).to(self.peaks.dtype), lows=lows)

    def rows(self, first: int, end: int) -> "Swept":
        """Sentences `first` to `end` of a block that was swept `apart`."""
        rows = slice(first, end)
        lows, squares = (None if part is None else part[rows] for part in (self.lows, self.squares))
        least = self.least if lows is None else lows.amin(0).float()
        return Swept(self.length, self.peaks[rows], lows, self.fired[rows], self.sums[rows], squares, least)


class Observer:
    """Reuses scratch memory between blocks, so each thread needs its own."""

    def __init__(self) -> None:
        self._scratch_memory: dict[tuple[torch.dtype, torch.device, str], Tensor] = {}
        self._bins: dict[tuple[int, bool, torch.device], BinCounter] = {}

    def forget(self) -> None:
        """Discards bins whose histogram was never taken."""
        for counter in self._bins.values():
            counter.forget()

    def sweep(self, block: Tensor, *, negative: bool, sampled: bool, apart: bool = False) -> Swept:
        """Measures a block `[batch, position, memory]` of whole sentences of one length.

        Without `negative`, no coefficient may be below zero. Bins of a sampled block are counted until `histogram`
        takes them. `apart`: rows belong to several experts, so `lows` replace `least`, and bins are not counted.
        """
        negative = negative or apart
        batch, positions, memories = block.shape
        # A CPU sweeps 16-bit numbers two or three times slower than float32.
        dtype = torch.float32 if may_look(block.device) else block.dtype
        peaks = torch.empty(batch, memories, dtype=dtype, device=block.device)
        # float64, since a memory of nearly constant coefficients has a small variance beside large sums.
        sums = torch.empty_like(peaks, dtype=torch.float64 if sampled else torch.float32)
        swept = Swept(
            positions,
            peaks,
            torch.empty_like(peaks) if negative else None,
            torch.empty_like(peaks, dtype=torch.float32),
            sums,
            torch.empty_like(sums) if sampled else None,
            torch.zeros(memories, device=block.device),
        )
        counter = self._counter(memories, negative, block.device) if sampled and not apart else None
        self._fill(swept, block, counter)
        if apart:
            return swept
        if swept.lows is not None:
            swept.least.copy_(swept.lows.amin(0))
        elif not may_look(block.device):
            swept.least.copy_(block.amin((0, 1)))
        else:
            always = (swept.fired.amin(0) == positions).nonzero()[:, 0]
            if len(always):
                swept.least[always] = block[:, :, always].amin((0, 1)).float()
        if not negative:
            swept.least.add_(0.0)  # turns -0.0 into 0.0
        return swept

    def histogram(self, memories: int, *, negative: bool, device: torch.device) -> Tensor:
        """The counts `[memory, bin]` of all sampled blocks of this width since the last call."""
        return self._counter(memories, negative, device).take()

    def count_bins(self, block: Tensor, *, negative: bool) -> None:
        self._counter(block.shape[-1], negative, block.device).add(block)

    def _fill(self, swept: Swept, block: Tensor, counter: BinCounter | None) -> None:
        size = _SLICE if may_look(block.device) else _DEVICE_SLICE
        step = max(1, size // (block.shape[1] * block.shape[2]))
        for start in range(0, len(block), step):
            part = slice(start, start + step)
            piece = block[part]
            if piece.dtype != swept.peaks.dtype:
                piece = self._scratch(piece, swept.peaks.dtype).copy_(piece)
            # First a comparison, which reads sequentially: a maximum over positions would wait for every cache line.
            above = torch.gt(piece, 0, out=self._scratch(piece, piece.dtype, "above"))
            torch.amax(piece, 1, out=swept.peaks[part])
            torch.sum(above, 1, dtype=torch.float32, out=swept.fired[part])
            if swept.squares is None:
                torch.sum(piece, 1, dtype=torch.float32, out=swept.sums[part])
            else:
                wide = self._scratch(piece, torch.float64).copy_(piece)
                torch.sum(wide, 1, out=swept.sums[part])
                torch.sum(wide.square_(), 1, out=swept.squares[part])
            if counter is not None:
                counter.add(piece)
            if swept.lows is not None:
                torch.amin(piece, 1, out=swept.lows[part])

    def _scratch(self, piece: Tensor, dtype: torch.dtype, use: str = "wide") -> Tensor:
        key, size = (dtype, piece.device, use), piece.numel()
        memory = self._scratch_memory.get(key)
        if memory is None or len(memory) < size:
            memory = self._scratch_memory[key] = torch.empty(size, dtype=dtype, device=piece.device)
        return memory[:size].view(piece.shape)

    def _counter(self, memories: int, negative: bool, device: torch.device) -> BinCounter:
        kind = memories, negative, device
        if kind not in self._bins:
            self._bins[kind] = BinCounter(memories, negative=negative, device=device)
        return self._bins[kind]
