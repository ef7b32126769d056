"""How many threads sweep a block: all of them, or one, whichever was faster lately.

The sweeps are many short operations. At the end of each, several threads wait for one another, and beside other work
that wait takes many times as long as the operation itself; on a quiet machine they are a little faster (LOG.md). Which
of the two it is can change while a text is mined, so both are timed now and then. No number depends on it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH_SHARING = 1 << 16
"""Coefficients that torch would share out among threads, at least."""
_TRIED_EVERY = 64
"""Sweeps after which the slower choice is tried again."""
_EARLIER = 0.75
"""What a choice's earlier times weigh in its mean."""


class SweepThreads:
    """Chooses for sweeps of one kind; times are seconds for each coefficient."""

    def __init__(self) -> None:
        self._all = torch.get_num_threads()
        self._seconds = {1: 0.0, self._all: 0.0}
        self._taken = 0

    @contextmanager
    def choose(self, coefficients: int) -> Iterator[int]:
        """Sets the number of threads for a sweep of so many, says it, and learns from the time that it took."""
        if self._all == 1 or coefficients < _WORTH_SHARING:
            yield self._all
            return
        self._taken += 1
        fast, slow = sorted(self._seconds, key=self._seconds.__getitem__)
        threads = slow if self._taken % _TRIED_EVERY == 0 else fast  # what was never timed took no time so far
        torch.set_num_threads(threads)
        began = time.perf_counter()
        try:
            yield threads
        finally:
            torch.set_num_threads(self._all)
        each, before = (time.perf_counter() - began) / coefficients, self._seconds[threads]
        self._seconds[threads] = _EARLIER * before + (1 - _EARLIER) * each if before else each
