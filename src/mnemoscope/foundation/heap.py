"""Controls whether glibc keeps freed memory or returns it to the system, and checks the limit of the address space.

The kernel fills fresh memory with zeros, page by page, which costs short sums over megabytes more than the sums. Kept
memory that fits no later request is lost to the whole machine. Does nothing without glibc.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any

from mnemoscope.errors import OptionError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MAPPED, _TRIMMED, _PADDED, _HEAPS = -3, -1, -2, -8
"""M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD and M_ARENA_MAX of malloc.h."""
ROOM = 48 << 20
"""Bytes of growth before the heap is trimmed; a trim takes some tens of milliseconds."""


class HeapTrimmer:
    """Returns free heap memory to the system once the process has grown by more than `room` bytes since it was
    smallest. Batches differ in shape, so the heap is left with holes: ten times the text took 1.3 times the memory and
    more (docs/log). Does nothing without glibc on Linux.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._trim: Any = None
        self._least: int | None = None
        with suppress(OSError, AttributeError, TypeError):
            _resident()
            self._trim = ctypes.CDLL(None).malloc_trim

    def check(self) -> None:
        if self._trim is None:
            return
        now = _resident()
        self._least = now if self._least is None else min(self._least, now)
        if now - self._least > self._room:
            self.trim()

    def trim(self) -> None:
        if self._trim is not None:
            self._trim(0)
            self._least = None


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def keep_freed_memory(at_most: int, *, padding: int = 128 << 10) -> None:
    """Lets glibc keep `at_most` freed bytes from now on, and fetch `padding` bytes (as by default) beyond its need."""
    _tell_malloc({_MAPPED: 32 << 20, _TRIMMED: at_most, _PADDED: padding})  # the first is glibc's maximum


def give_back_freed_memory() -> None:
    """Makes glibc return large blocks at once and use few heaps: each thread's own would keep them in pieces."""
    _tell_malloc({_MAPPED: 1 << 20, _HEAPS: 2})


def _tell_malloc(settings: dict[int, int]) -> None:
    with suppress(OSError, AttributeError):
        for name, value in settings.items():
            ctypes.CDLL(None).mallopt(name, value)


def require_addresses(least: int, what: str) -> None:
    """Raises OptionError if fewer than `least` bytes of addresses may be used; libraries abort or hang then."""
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]  # -1: no limit
    if 0 <= limit < least:
        raise OptionError(
            f"{what} needs an address space of {least / 1e9:,.0f} GB, most of it reserved and never filled, and this"
            f" process may use {limit / 1e9:,.1f} GB; run it after `ulimit -v unlimited`, and limit memory by a cgroup"
        )


_SIGNS = (
    *("not enough memory", "out of memory", "an't allocate memory", "annot allocate memory", "failed to map segment"),
    *("ailed to launch worker thread", "an't start new thread"),
)
"""What systems and libraries say where memory or addresses are used up."""


def ran_out(error: BaseException | None) -> bool:
    """Whether memory ran out: this error or one behind it says so, or is of a library that, loaded under a limit, found
    no room for all of its names.
    """
    half = False
    if isinstance(error, ImportError | NameError) and error.__traceback__ is not None and resource is not None:
        *_, (frame, _) = walk_tb(error.__traceback__)
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        half = limit != resource.RLIM_INFINITY and not frame.f_globals["__name__"].startswith("mnemoscope")
    if error is None or half or isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS):
        return error is not None
    return ran_out(error.__cause__ or error.__context__)
