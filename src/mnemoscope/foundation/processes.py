"""What this process may use: its cores; and, if it was forked, which libraries.

A child has none of its parent's threads, and a library that had some would wait for them for ever. Polars cannot read
there, which is said in one line; PyTorch runs with one thread (models/modules/switches.py). What counts is what the
parent did through this package before the fork: forks before that, and what the parent did with these libraries itself,
are not noticed.
"""

import os
import sys
from collections.abc import Collection

from mnemoscope.errors import Forked

_FIRST: dict[str, int] = {}
"""The process that used each library first."""


def usable_cores() -> Collection[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)


def is_forked(library: str) -> bool:
    """Whether this process was forked from one that had used the library, and so may have had its threads."""
    return _FIRST.setdefault(library, os.getpid()) != os.getpid()


def refuse_forked() -> None:
    """Raises Forked where polars would wait for its missing threads for ever."""
    if is_forked("polars"):
        raise Forked(
            f"process {os.getpid()} was forked from one that had read tables (polars), and would wait for ever for its"
            " threads; start it with multiprocessing.get_context('spawn') or 'forkserver'"
        )
