"""Which cores of this machine the process may use, and how much the cache of one holds."""

import os
import sys
from collections.abc import Collection

IN_CACHE = 1 << 18
"""Numbers in float32 that are swept several times at once on a CPU: 1 MiB, which a core's second cache holds."""


def usable_cores() -> Collection[int]:
    """The numbers of the cores that this process may use, at least one; only Linux ties a process to some."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
