"""Ctrl-C in work that must stop between two steps, not inside one: a half-made step cannot be saved."""

import signal
import threading
from typing import Any


class CtrlC:
    """Turns the first Ctrl-C into a flag that the work looks at between steps; the second stops at once.

    Outside the main thread, which alone receives signals, it does nothing.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._before: Any = None

    def __enter__(self) -> "CtrlC":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def _press(self, *_: object) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
