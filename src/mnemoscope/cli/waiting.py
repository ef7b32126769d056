"""How the threads of a computation wait for one another, decided before torch is imported, which looks only then.

Spinning is fastest where a core is free for every thread. Where another process wants the core, the thread that it
spins for is not running, and mining becomes several times slower; sleeping costs little there. So the command line
looks at what other processes do while it starts. No result depends on it.
"""

import os
import time
from dataclasses import dataclass

import psutil

from mnemoscope.cores import usable_cores

POLICY = "OMP_WAIT_POLICY"
_SAID = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables with which people settle this themselves."""
_BUSY = 0.3
"""Cores' worth of other work, on the cores that this process may use, from which on threads sleep."""
_SHORTEST = 0.05
"""Seconds: processor times are counted in ticks of 10 ms, so less says nothing."""


@dataclass(frozen=True)
class Moment:
    """Seconds on the clock, of work on the cores that this process may use, and of its own work."""

    clock: float
    work: float
    own: float


def moment() -> Moment:
    """What the processors have done up to now."""
    cores = psutil.cpu_times(percpu=True)
    usable = usable_cores()
    work = sum(_work(times) for core, times in enumerate(cores) if core in usable)
    return Moment(time.monotonic(), work, time.process_time())


def _work(times: object) -> float:
    # What runs in a virtual machine (guest) is counted as user time already.
    return sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))


def choose_waiting(before: Moment, after: Moment) -> None:
    """Has threads sleep where other processes work; otherwise, and where somebody has settled it, changes nothing."""
    elapsed = after.clock - before.clock
    if elapsed < _SHORTEST or any(name in os.environ for name in _SAID):
        return
    others = (after.work - before.work) - (after.own - before.own)
    if others > _BUSY * elapsed:
        os.environ[POLICY] = "PASSIVE"
