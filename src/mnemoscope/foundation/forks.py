"""Detects forked processes: a child has none of its parent's threads, and the libraries that had some hang.

Tables are read with polars, whose thread pool cannot be restarted, so reading is refused in a child of a process whose
pool had started. PyTorch runs without threads there (models/modules/switches.py). Not detected: forks made outside of
Python, and forks before this module was imported.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

from mnemoscope.errors import Forked

TASKS = Path("/proc/self/task")
"""The folder in which Linux names the threads of this process."""
_NAME = "polars-"
_running: dict[str, int] = {}
"""The process in which a library's threads run, or may run, as noted at the last fork."""


def lacks_threads(library: str) -> bool:
    """Whether this process was forked from one in which `torch` was imported, or `polars` had started its threads."""
    return _running.get(library, os.getpid()) != os.getpid()


def refuse_forked() -> None:
    """Raises Forked where polars would wait for its missing threads for ever."""
    if lacks_threads("polars"):
        raise Forked(
            f"process {os.getpid()} was forked from one that had read tables (polars), and would wait for ever for its"
            " threads; start it with multiprocessing.get_context('spawn') or 'forkserver'"
        )


def _look() -> None:
    """Notes, before a fork, which libraries' threads the child will lack."""
    if "torch" in sys.modules:
        _running.setdefault("torch", os.getpid())
    if "polars" in sys.modules and _polars_has_begun():
        _running.setdefault("polars", os.getpid())


def _polars_has_begun() -> bool:
    """Whether polars has started its pool; assumed where /proc is missing."""
    try:
        tasks = list(TASKS.iterdir())
    except OSError:
        return True
    for task in tasks:
        with suppress(OSError):  # it has ended
            if (task / "comm").read_text().removeprefix(_NAME).strip().isdigit():
                return True
    return False


if register := getattr(os, "register_at_fork", None):  # Windows forks nothing
    register(before=_look)
