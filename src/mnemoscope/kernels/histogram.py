"""How many coefficients of each memory lie between neighbouring edges of the format: zero, and plus and minus 2**k.

The bin of a float32 is in its exponent, so it is had as one byte by a shift. Then, for each bin that occurs, the bytes
that equal it are added up, eight memories to one 64-bit integer. All of this is sweeps over a block that the cache
holds; looking bins up among the edges and raising 36 counters a memory one by one takes many times as long (LOG.md).
"""

import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, ZERO_BIN
from mnemoscope.kernels.devices import may_look

_LEAST, _MOST = 116, 133
"""Exponent bytes of what is below 2**-10, the least edge, and of 2**6, the greatest, and more."""
_BELOW_ZERO = 32
"""Added to the byte of a negative coefficient."""
_ROWS = 255
"""Positions that a byte can count."""
WAITING_BYTES, WAITING_DEVICE_BYTES = 1 << 20, 1 << 26
"""Bins that wait to be counted: on a CPU what its cache holds, elsewhere so many that counting takes few steps."""


class BinCounter:
    """Counts `[memory, bin]` of blocks of `memories` coefficients; without `negative` none of them is below zero."""

    def __init__(self, memories: int, *, negative: bool, device: torch.device) -> None:
        self.memories, self.negative = memories, negative
        self._width = -(-memories // 8) * 8
        room = WAITING_BYTES if may_look(device) else WAITING_DEVICE_BYTES
        rows = max(1, room // (_ROWS * self._width)) * _ROWS
        self._bins = torch.zeros(rows, self._width, dtype=torch.uint8, device=device)
        self._equal = torch.empty_like(self._bins)
        self._filled = self._rows = 0
        self._counts = torch.zeros(HISTOGRAM_BINS, memories, dtype=torch.int64, device=device)

    def add(self, block: Tensor) -> None:
        """Counts in a block `[batch, position, memory]`."""
        batch, positions, _ = block.shape
        self._rows += batch * positions
        for start in range(0, positions, len(self._bins)):  # of a sentence at most what there is room for
            part = block[:, start : start + len(self._bins)]
            while len(part):
                taken = (len(self._bins) - self._filled) // part.shape[1]
                if not taken:
                    self._count()
                    continue
                self._write(part[:taken].float())
                part = part[taken:]

    def forget(self) -> None:
        """Forgets what was added since the last `take`."""
        self._filled = self._rows = 0
        with torch.inference_mode():  # which the counts belong to where a model's forward made them
            self._counts.zero_()

    def take(self) -> Tensor:
        """The counts `[memory, bin]` of all that was added since the last time."""
        self._count()
        counts = self._counts.clone()
        counts[ZERO_BIN] = self._rows - counts.sum(0)
        self.forget()
        return counts.T.contiguous()

    def _write(self, block: Tensor) -> None:
        """Puts the bytes of a block, for which there is room, behind those that wait: LEAST to MOST by exponent, with
        BELOW_ZERO where negative; a negative power of two is the end of its bin.
        """
        begin = self._filled
        self._filled += block.shape[0] * block.shape[1]
        room = self._bins[begin : self._filled].view(*block.shape[:2], self._width)[:, :, : self.memories]
        if not self.negative:
            room.copy_(block.view(torch.int32) >> 23).clamp_(_LEAST, _MOST)
            return
        bits = (block + 0.0).view(torch.int32)  # of -0.0 it makes 0.0
        below = bits >> 31
        room.copy_((bits + below).bitwise_right_shift_(23)).clamp_(_LEAST, _MOST)
        room.add_(below.to(torch.uint8).bitwise_and_(_BELOW_ZERO))

    def _count(self) -> None:
        """Counts the bins that wait, all but that of zero."""
        if not self._filled:
            return
        filled = -(-self._filled // _ROWS) * _ROWS if self._filled > _ROWS else self._filled
        bins, equal = self._bins[:filled], self._equal[:filled]
        bins[self._filled :].fill_(_LEAST)
        least, most = (int(end) for end in bins.aminmax()) if may_look(bins.device) else (0, 255)
        occurring = {byte: index for byte, index in _INDEX.items() if least <= byte <= most}
        lanes = equal.view(torch.int64).view(-1, min(filled, _ROWS), self._width // 8)
        sums = lanes.new_empty(len(occurring), len(lanes), self._width // 8)
        for byte, own in zip(occurring, sums, strict=True):
            torch.eq(bins, byte, out=equal)
            torch.sum(lanes, 1, out=own)
        found = sums.view(torch.uint8)[:, :, : self.memories].sum(1)
        self._counts[list(occurring.values())] += found
        self._filled = 0


_INDEX = {_LEAST + step: ZERO_BIN + step for step in range(1, _MOST - _LEAST + 1)} | {
    _LEAST + _BELOW_ZERO + step: ZERO_BIN - 1 - step for step in range(_MOST - _LEAST + 1)
}
"""The bin of each byte but that of zero's."""
