"""Histograms of each memory's coefficients, with the edges zero and plus and minus 2**k.

A float32's bin follows from its exponent, so a shift gives it as one byte. For each bin that occurs, equal bytes are
counted, eight memories in one 64-bit integer: many times as fast as `bucketize` (docs/log).
"""

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, ZERO_BIN
from mnemoscope.kernels.devices import may_look

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
        for byte, own in zip(occurring, sums, strict=True):
            torch.eq(bins, byte, out=equal)
            torch.sum(lanes, 1, out=own)
        totals = sums.view(torch.uint8)[:, :, : self.memories].sum(1)
        self._counts[list(occurring.values())] += totals
        self._filled = 0


_INDEX = {_LOWEST + step: ZERO_BIN + step for step in range(1, _HIGHEST - _LOWEST + 1)} | {
    _LOWEST + _BELOW_ZERO + step: ZERO_BIN - 1 - step for step in range(_HIGHEST - _LOWEST + 1)
}
"""The bin of each byte, except the zero bin's."""
