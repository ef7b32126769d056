"""The cores that this process may use, and how much the cache of one holds."""

import os
import sys
from collections.abc import Collection

IN_CACHE = 1 << 18
"""Numbers in float32 that a CPU sweeps several times at once: 1 MiB, which a core's second cache holds."""


def usable_cores() -> Collection[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
