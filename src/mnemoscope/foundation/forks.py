"""Forked processes: a child has none of its parent's threads, and the libraries that had some wait for them for ever.

Tables are read with polars, whose threads cannot be started again, so that reading is refused in a child whose parent
had them. PyTorch does without its threads when it is told so (models/modules/switches.py). A fork that is no process
of Python's own, or came before this module was imported, is not seen.
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
"""The process in which the threads of a library run, or may run, as far as a fork has looked."""


def lacks_threads(library: str) -> bool:
    """Whether this process was forked from one in which `torch` was imported, or `polars` had begun its threads."""
    return _running.get(library, os.getpid()) != os.getpid()


def refuse_forked() -> None:
    """Raises Forked where tables cannot be read, since polars would wait for ever."""
    if lacks_threads("polars"):
        raise Forked(
            f"process {os.getpid()} was forked from one that had read tables (polars), and would wait for ever for its"
            " threads; start it with multiprocessing.get_context('spawn') or 'forkserver'"
        )


def _look() -> None:
    """Notes, before a fork, whose threads will be missing in the child."""
    if "torch" in sys.modules:
        _running.setdefault("torch", os.getpid())
    if "polars" in sys.modules and _polars_has_begun():
        _running.setdefault("polars", os.getpid())


def _polars_has_begun() -> bool:
    """Whether polars has begun its pool; where the system names no threads, true once it is imported."""
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
