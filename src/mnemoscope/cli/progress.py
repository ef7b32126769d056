"""The progress of a long command on stderr: a bar on a terminal, lines elsewhere, or JSON for programs.

A room reports `progress(stage, done, total, note)`. A note of one plural word, such as `tokens`, is the unit of `done`;
text after the unit and a semicolon, as in `tokens; 4 workers, 1 lease lost`, is shown unchanged.

Rate and remaining time count from the first report of the stage, since a resumed run starts in the middle.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from mnemoscope.cli.runner import stream_behind
from mnemoscope.foundation.options.mining_options import LoadOptions
from mnemoscope.foundation.options.model_options import display_name
from mnemoscope.foundation.progress import (
    NOTE,
    WORKER,
    Note,
    Progress,
    report_to,
    reporting_late,
    reporting_to,
    unit_and_rest,
)

if TYPE_CHECKING:
    from mnemoscope.models import LanguageModel

LINE_EVERY, EVENT_EVERY = 10.0, 1.0
"""Seconds between two lines of one stage, for people and for programs."""


@contextmanager
def reporting(events: bool = False) -> Iterator[Progress]:
    """The `progress` callback for a room; with `events` it writes one JSON document per line, also on a terminal."""
    if sys.stderr.isatty() and not events:
        with report_to(True, stream_behind(sys.stderr)) as report:
            yield report
    else:
        lines = json_events(sys.stderr) if events else Lines(sys.stderr)
        with reporting_to(lines):
            yield lines
        lines.finish()


def load_shown(model: str, options: LoadOptions) -> "LanguageModel":
    """The model of these options; says what is loaded, if that takes long."""
    from mnemoscope.models import load_model

    with loading(model):
        return load_model(model, **options.keywords())


@contextmanager
def loading(model: str, *, after: float = 2.0) -> Iterator[None]:
    """Says on stderr that a model is loaded, and then what of it, if that takes longer than `after` seconds."""
    with reporting() as progress, reporting_late(progress, after=after) as report:
        report("loading", 0, None, display_name(model))
        yield


@dataclass(frozen=True)
class ProgressReport:
    """One report of a stage; `rate` per second and `left` in seconds are None while unknown."""

    stage: str
    done: float
    total: float | None
    note: str
    rate: float | None = None
    left: float | None = None


def plain_line(report: ProgressReport) -> str:
    stage, done, total = report.stage, report.done, report.total
    if stage in (WORKER, NOTE):
        return f"{stage}: {report.note}" if stage == NOTE else f"{stage} {report.note}"
    unit, note, scale = in_unit(report.note)
    words = []
    if done or total is not None:
        count = _number(done * scale) + ("" if total is None else f" of {_number(total * scale)}")
        words.append(f"{count} {unit}".strip() + (f" ({100 * done / total:.0f} %)" if total else ""))
    if report.rate is not None:
        words.append(f"{_number(report.rate * scale)} {unit}".rstrip() + "/s")
    if report.left is not None:
        words.append(f"{spoken_time(report.left)} left")
    if note:
        words.append(note)
    return f"{stage}: {', '.join(words)}" if words else stage


def json_line(report: ProgressReport) -> str:
    """`event` is `progress`, `worker` with `worker`, `what` and `why`, or `note` with `note`. Bytes are in bytes;
    `workers` and `leases_lost` are null if the note has none.
    """
    if report.stage == NOTE:
        return json.dumps({"event": NOTE, "note": report.note})
    facts = report.note.facts if isinstance(report.note, Note) else {}
    if report.stage == WORKER:
        return json.dumps({"event": "worker", "worker": None, "what": None, "why": str(report.note), **facts})
    unit, note = unit_and_rest(report.note)
    return json.dumps(
        {
            "event": "progress",
            "stage": report.stage,
            "done": report.done,
            "total": report.total,
            "unit": unit or None,
            "rate": report.rate,
            "seconds_left": report.left,
            "workers": None,
            "leases_lost": None,
            "note": note or None,
            **facts,
        }
    )


@dataclass
class Lines:
    """Progress as lines: the first report of a stage, one per interval, and the last; all events of workers."""

    stream: TextIO
    every: float = LINE_EVERY
    clock: Callable[[], float] = time.monotonic
    form: Callable[[ProgressReport], str] = plain_line
    _stage: str = ""
    _began: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When the stage began, and at how much, by unit."""
    _shown: float = 0.0
    _pending: ProgressReport | None = field(default=None, repr=False)

    def __call__(self, stage: str, done: float, total: float | None, note: str = "") -> None:
        now = self.clock()
        if stage in (WORKER, NOTE):
            self._print(ProgressReport(stage, done, total, note))
            return
        if stage != self._stage:
            self.finish()
            self._stage, self._shown, self._began = stage, now - self.every, {}
        since, first = self._began.setdefault(unit_and_rest(note)[0], (now, done))
        rate = (done - first) / (now - since) if now > since and done > first else None
        left = (total - done) / rate if rate and total is not None and done < total else None
        self._pending = ProgressReport(stage, done, total, note, rate, left)
        if now - self._shown >= self.every or (total is not None and done >= total):
            self.finish()
            self._shown = now

    def finish(self) -> None:
        if self._pending is not None:
            self._print(self._pending)
        self._pending = None

    def _print(self, report: ProgressReport) -> None:
        print(self.form(report), file=self.stream, flush=True)


def json_events(stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> Lines:
    return Lines(stream, every=EVENT_EVERY, clock=clock, form=json_line)


def in_unit(note: str) -> tuple[str, str, float]:
    """Unit, remaining note, and factor of the numbers: `tokens; 4 workers` -> tokens, `bytes` -> MB."""
    unit, rest = unit_and_rest(note)
    return ("MB", rest, 1e-6) if unit == "bytes" else (unit, rest, 1.0)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def spoken_time(seconds: float) -> str:
    """A duration in words: `40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
