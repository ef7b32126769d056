"""Gives memory that is free but held by the C library back to the operating system, when that has become much.

Batches differ in shape, so the C library's heap is left with holes that the next batch does not fit; survivors that
wait in their queues keep it from shrinking. Without this, ten times the text took 1.3 times the memory and more,
although nothing that is alive grew (LOG.md). Frees nothing that is in use and changes no result; does nothing where
there is no Linux with glibc.
"""

import ctypes
import resource
from pathlib import Path
from typing import Any

ROOM = 48 << 20
"""Bytes by which the process may grow before holes are looked for: giving back costs some tens of milliseconds."""

_STATM = Path("/proc/self/statm")


class HeapTrimmer:
    """Remembers how much was resident at the first look after memory was last given back.

    At the first look, not at once: what every batch needs and frees again is no hole.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._trim: Any = None
        self._least: int | None = None
        try:
            self._trim = ctypes.CDLL(None).malloc_trim
            _resident()
        except (OSError, AttributeError, TypeError):
            self._trim = None

    def check(self) -> None:
        """Gives back what is free if the process has grown by more than the room since it was smallest."""
        if self._trim is None:
            return
        now = _resident()
        self._least = now if self._least is None else min(self._least, now)
        if now - self._least > self._room:
            self.trim()

    def trim(self) -> None:
        """Gives back what is free."""
        if self._trim is not None:
            self._trim(0)
            self._least = None


def _resident() -> int:
    """Bytes of this process in memory, mapped files aside."""
    fields = _STATM.read_text(encoding="ascii").split()
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()
