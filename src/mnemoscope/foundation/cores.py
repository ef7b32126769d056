"""The cores that this process may use."""

import os
import sys
from collections.abc import Collection


def usable_cores() -> Collection[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
