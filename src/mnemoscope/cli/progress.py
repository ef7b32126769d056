"""How far a long command is, on stderr: a bar on a terminal, a line now and then elsewhere.

A room reports `progress(stage, done, total, note)`. A note of one plural word, such as `tokens`, is the unit of `done`.
Shows the rate and the time left, counted from the first report of the stage (a resumed run starts in the middle).
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from mnemoscope.progress import Progress

LINE_EVERY = 10.0


@contextmanager
def reporting() -> Iterator[Progress]:
    """What to pass to a room as `progress`."""
    if sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        lines = Lines(sys.stderr)
        yield lines
        lines.finish()


@dataclass
class Lines:
    """Progress as plain lines: the first report of a stage, one every ten seconds, and the last."""

    stream: TextIO
    every: float = LINE_EVERY
    clock: Callable[[], float] = time.monotonic
    _stage: str = ""
    _began: float = 0.0
    _from: float = 0.0
    _shown: float = 0.0
    _pending: str = field(default="", repr=False)

    def __call__(self, stage: str, done: float, total: float | None, note: str = "") -> None:
        """Takes one report."""
        now = self.clock()
        if stage != self._stage:
            self.finish()
            self._stage, self._began, self._from, self._shown = stage, now, done, now - self.every
        self._pending = self._line(stage, done, total, note, now)
        if now - self._shown >= self.every or (total is not None and done >= total):
            self.finish()
            self._shown = now

    def finish(self) -> None:
        """Prints what was reported last, if it is not out yet."""
        if self._pending:
            print(self._pending, file=self.stream, flush=True)
        self._pending = ""

    def _line(self, stage: str, done: float, total: float | None, note: str, now: float) -> str:
        unit, note, scale = in_unit(note)
        words = []
        if done or total is not None:
            count = _number(done * scale) + ("" if total is None else f" of {_number(total * scale)}")
            words.append(f"{count} {unit}".strip() + (f" ({100 * done / total:.0f} %)" if total else ""))
        spent = now - self._began
        if spent > 0 and done > self._from:
            rate = (done - self._from) / spent
            words.append(_rate(rate * scale, unit))
            if total is not None and done < total:
                words.append(f"{spoken_time((total - done) / rate)} left")
        if note:
            words.append(note)
        return f"{stage}: {', '.join(words)}" if words else stage


def in_unit(note: str) -> tuple[str, str, float]:
    """Unit, remaining note, and what to multiply numbers with: `tokens` -> tokens, bytes -> MB."""
    if note == "bytes":
        return "MB", "", 1e-6
    return (note, "", 1.0) if re.fullmatch(r"[a-z]+s", note) else ("", note, 1.0)


def _number(value: float) -> str:
    """A count as one reads it: whole, or with one decimal where it is small and not whole."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _rate(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}/s" if unit else f"{_number(value)}/s"


def spoken_time(seconds: float) -> str:
    """A duration as one would say it: `40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def _bars() -> Iterator[Progress]:
    """One bar per stage, drawn by rich."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from mnemoscope.cli.drawing import stderr_console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", markup=False),
    )
    tasks: dict[str, Any] = {}
    began: dict[str, tuple[float, float]] = {}
    with Bars(*columns, console=stderr_console(), refresh_per_second=4) as drawn:

        def report(stage: str, done: float, total: float | None, note: str = "") -> None:
            unit, said, scale = in_unit(note)
            now = time.monotonic()
            if stage not in tasks:
                tasks[stage] = drawn.add_task(stage, total=total, count="", rate="", note="")
                began[stage] = now, done
            since, first = began[stage]
            spoken = _rate(scale * (done - first) / (now - since), unit) if now > since and done > first else ""
            count = _number(done * scale) + ("" if total is None else f"/{_number(total * scale)}")
            drawn.update(
                tasks[stage], completed=done, total=total, count=f"{count} {unit}".strip(), rate=spoken, note=said
            )

        yield report
