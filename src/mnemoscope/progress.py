"""Long work: how it says how far it is, and how it is saved now and then. Ctrl-C stops it between two steps, since a
half-made step cannot be saved.
"""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from mnemoscope.errors import Interrupted

Progress = Callable[[str, float, float | None, str], None]
"""Called with a stage's name, what is done, what is to do (None: unknown), and a note, mostly the unit."""


def ignore_progress(stage: str, done: float, total: float | None, note: str) -> None:
    """A `Progress` that says nothing."""


class Checkpoints:
    """Calls `save` at most every so many seconds, and when the first Ctrl-C has come; the second one stops at once.

    Outside the main thread, which alone receives signals, Ctrl-C is not seen.
    """

    def __init__(self, save: Callable[[], None], *, every: float) -> None:
        self._save, self._every = save, every
        self._pressed = False
        self._before: Any = None

    def __enter__(self) -> "Checkpoints":
        self._saved = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def step_done(self, stopped: str = "stopped after saving; run the same command again to go on from here") -> None:
        """Saves if it is time; raises Interrupted, which says `stopped`, after a Ctrl-C."""
        if self._pressed or time.monotonic() - self._saved >= self._every:
            self._save()
            self._saved = time.monotonic()
        if self._pressed:
            raise Interrupted(stopped)

    def _press(self, *_: object) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
