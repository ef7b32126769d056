"""What the C library does with memory that is free again: kept for whoever asks next, or given back to the system;
and how many addresses there are.

Fresh memory is filled with zeros, page by page, which costs short sums over megabytes more than the sums. Memory that
is kept and does not fit what is asked for next is lost to everybody. All of this does nothing where there is no glibc.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from mnemoscope.errors import OptionError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MAPPED, _TRIMMED, _PADDED, _HEAPS = -3, -1, -2, -8
"""By the numbers of malloc.h: the size from which memory is mapped, that of what is kept, what is fetched at a time,
and how many heaps there are for threads.
"""
ROOM = 48 << 20
"""Bytes by which the process may grow before holes are looked for: giving back costs some tens of milliseconds."""


class HeapTrimmer:
    """Gives memory that is free but held by the C library back to the operating system, when that has become much.

    Batches differ in shape, so the C library's heap is left with holes that the next batch does not fit; survivors that
    wait in their queues keep it from shrinking. Without this, ten times the text took 1.3 times the memory and more,
    although nothing that is alive grew (LOG.md). Does nothing where there is no Linux with glibc.

    Remembers how much was resident at the first look after memory was last given back. At the first look, not at once:
    what every batch needs and frees again is no hole.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._trim: Any = None
        self._least: int | None = None
        with suppress(OSError, AttributeError, TypeError):
            _resident()
            self._trim = ctypes.CDLL(None).malloc_trim

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
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def keep_freed_memory(at_most: int, *, padding: int | None = None) -> None:
    """Lets the C library keep so many bytes of what is given back, in this process from now on.

    `padding`: how many bytes it fetches beyond those asked for.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MAPPED, 32 << 20)  # the most that it takes
        mallopt(_TRIMMED, at_most)
        if padding is not None:
            mallopt(_PADDED, padding)


def give_back_freed_memory() -> None:
    """Lets the C library give back at once what is large, in this process from now on, and keep few heaps.

    For a process of many threads that now and then read a lot: each of them has a heap of its own, and what is large
    lies in these as soon as something larger was given back, and stays there in pieces that nobody fits.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MAPPED, 1 << 20)
        mallopt(_HEAPS, 2)


def require_addresses(least: int, what: str) -> None:
    """Raises OptionError where the process may use fewer than `least` bytes of addresses.

    Libraries reserve far more than they fill, and where they may not they abort the process, or wait for ever.
    """
    limit = least if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    if resource is not None and limit != resource.RLIM_INFINITY and limit < least:
        raise OptionError(
            f"{what} needs an address space of {least / 1e9:,.0f} GB, most of it reserved and never filled, and this"
            f" process may use {limit / 1e9:,.1f} GB; run it after `ulimit -v unlimited`, and limit memory by a cgroup"
        )
