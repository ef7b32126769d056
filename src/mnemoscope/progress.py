"""How long work says how far it is: one shape of report for every room."""

from collections.abc import Callable

Progress = Callable[[str, float, float | None, str], None]
"""Called with a stage's name, what is done, what is to do (None: unknown), and a note, mostly the unit."""


def ignore_progress(stage: str, done: float, total: float | None, note: str) -> None:
    """A `Progress` that says nothing."""
