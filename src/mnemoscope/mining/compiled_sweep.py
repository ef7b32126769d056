"""The sweep over a block of coefficients as compiled C (sweep.c): one pass of one call, in which Python is let go.

PyTorch takes some twenty calls for it, each a pass of its own: five times as long, and threads wait for one another's
Python (LOG.md). Numbers are the same, to the bit. Where nothing was compiled `compiled_sweep` is None, and PyTorch does
it all, as it does for blocks that do not fit.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from mnemoscope.compiled import caller_of, compiled_function
from mnemoscope.memory import HISTOGRAM_BINS, HISTOGRAM_EDGES

_FUNCTION, _ARGUMENTS = "sweep_block_3", "pnnnnnn" + 9 * "p"
_LANES = 64
"""PyTorch adds up memories beyond a multiple of this in another order, and of equal zeros keeps another."""
_KINDS = (torch.float32, torch.bfloat16)


class CompiledSweep:
    """Calls the compiled function; room that it writes to has no gaps."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @staticmethod
    def fits(memories: int, device: torch.device) -> bool:
        """Whether blocks of so many memories on this device can be measured."""
        return device.type == "cpu" and memories % _LANES == 0

    @staticmethod
    def reads(dtype: torch.dtype) -> bool:
        """Whether numbers of this format are read as they lie; others are to be handed in as float32."""
        return dtype in _KINDS

    def measure(
        self,
        block: Tensor,
        *,
        peaks: Tensor,
        lows: Tensor,
        peak_places: Tensor,
        low_places: Tensor | None,
        fired: Tensor,
        sums: Tensor,
        squares: Tensor | None,
        counts: Tensor | None,
    ) -> None:
        """Writes what is read off each row of `block [row, place, memory]`, all `[row, memory]`: float32, and int32 the
        first places of peaks and lows.

        With `squares` these and the sums are float64. To the int64 `counts [memory, bin]` those of the block are added.
        """
        wide = (None, sums, squares) if squares is not None else (sums, None, None)
        self._call(block, peaks, lows, peak_places, low_places, fired, *wide, counts)

    def count(self, block: Tensor, counts: Tensor) -> None:
        """Adds the bins of `block [row, place, memory]` to the int64 `counts [memory, bin]`."""
        self._call(block, *(None,) * (len(_ROOM) - 1), counts)

    def _call(self, block: Tensor, *room: Tensor | None) -> None:
        rows, places, memories = block.shape
        if not block.numel():
            raise ValueError("a block without coefficients cannot be measured")
        if not self.fits(memories, block.device) or not self.reads(block.dtype):
            raise ValueError(f"blocks of {memories} {block.dtype} on {block.device} cannot be measured")
        if block.stride(2) != 1:
            block = block.contiguous()
        for one, kind, shape in zip(room, _ROOM, _shapes(rows, memories), strict=True):
            if one is not None and (one.dtype != kind or one.shape != shape or not one.is_contiguous()):
                raise ValueError(f"no room of shape {shape} for {kind}")
        self._function(
            block.data_ptr(), block.dtype == torch.bfloat16, rows, places, memories, block.stride(0), block.stride(1),
            *(None if one is None else one.data_ptr() for one in room),
        )  # fmt: skip


_ROOM = (*(torch.float32,) * 2, *(torch.int32,) * 2, *(torch.float32,) * 2, *(torch.float64,) * 2, torch.int64)
"""What the function writes to, in its order."""


def _shapes(rows: int, memories: int) -> list[tuple[int, int]]:
    return [(rows, memories)] * (len(_ROOM) - 1) + [(memories, HISTOGRAM_BINS)]


@cache
def compiled_sweep() -> CompiledSweep | None:
    """What was compiled as the package was installed, if it does what it should; None elsewhere."""
    return caller_of(compiled_function(_FUNCTION, _ARGUMENTS), CompiledSweep, _counts_as_it_should)


def _counts_as_it_should(sweep: CompiledSweep) -> bool:
    """Whether the format's edges, and zero, are counted in the bins that they begin."""
    edges = torch.tensor(HISTOGRAM_EDGES, dtype=torch.float32, device="cpu")
    counts = torch.zeros(_LANES, HISTOGRAM_BINS, dtype=torch.int64, device="cpu")
    sweep.count(edges[None, :, None].expand(-1, -1, _LANES), counts)
    wanted = torch.bincount(torch.bucketize(edges, edges, right=True), minlength=HISTOGRAM_BINS)
    return torch.equal(counts, wanted.expand_as(counts))
