"""Memory of the process: what a server gives back to the system, the limit of addresses, and when memory ran out."""

import ctypes
from contextlib import suppress
from traceback import walk_tb

from mnemoscope.errors import OptionError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MAPPED, _HEAPS = -3, -8
"""M_MMAP_THRESHOLD and M_ARENA_MAX of malloc.h."""


def give_back_freed_memory() -> None:
    """Makes glibc, if it is there, return large blocks at once and use few heaps: each thread of a server has its own,
    which kept 1.2 to 2.3 GB in pieces (docs/log).
    """
    with suppress(OSError, AttributeError):
        for name, value in ((_MAPPED, 1 << 20), (_HEAPS, 2)):
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
