"""Long work: its progress reports, its checkpoints, and the signals that stop it.

Ctrl-C, SIGTERM and SIGUSR1 (with which schedulers warn that time is nearly up) stop it between two steps, since a
half-made step cannot be saved; work without steps stops at once.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Self, TextIO

from mnemoscope.errors import Interrupted, Terminated
from mnemoscope.foundation.formatting import show_controls

Progress = Callable[[str, float, float | None, str], None]
"""Called with a stage's name, the amount done, the total (None: unknown), and a note: mostly the unit, with more behind
a semicolon, as in `tokens; 4 workers`."""


def ignore_progress(stage: str, done: float, total: float | None, note: str) -> None:
    """A `Progress` that reports nothing."""


def unit_and_rest(note: str) -> tuple[str, str]:
    """A note's unit, empty without one, and what else it says: `tokens; 4 workers` -> tokens."""
    unit, _, rest = note.partition("; ")
    return (unit, rest) if re.fullmatch(r"[a-z]+s", unit) else ("", note)


WORKER, NOTE = "worker", "note"
"""The stages of reports that are not progress: about workers (`worker_note`), and a line to be read once."""


_outer: ContextVar[Progress | None] = ContextVar("_outer", default=None)


@contextmanager
def reporting_to(progress: Progress) -> Iterator[Progress]:
    """All that reports inside, such as the loading of a model, reports to `progress`; not what that begins itself."""

    def report(*told: Any) -> None:
        during = _outer.set(None)
        try:
            progress(*told)
        finally:
            _outer.reset(during)

    before = _outer.set(report)
    try:
        yield progress
    finally:
        _outer.reset(before)


@contextmanager
def reporting_late(progress: Progress, *, after: float = 2.0) -> Iterator[Progress]:
    """All that reports inside reports to `progress`, if it takes longer than so many seconds: first what is being done
    then.
    """
    latest: list[tuple[str, float, float | None, str]] = []
    lock = threading.Lock()

    def begin() -> None:
        with lock:
            for told in latest:
                progress(*told)

    def report(stage: str, done: float, total: float | None, note: str) -> None:
        with lock:
            latest[:] = [(stage, done, total, note)]
            if timer.finished.is_set():
                progress(*latest[0])

    timer = threading.Timer(after, begin)
    timer.daemon = True
    timer.start()
    try:
        with reporting_to(report):
            yield report
    finally:
        timer.cancel()
        with lock:
            latest.clear()


def report_loading(note: str, done: float = 0, total: float | None = None) -> None:
    """What of a model is being loaded, in words; or with a `total` how much of it, `note` being the unit."""
    (_outer.get() or ignore_progress)("loading", done, total, note)


@contextmanager
def report_to(progress: "bool | Progress | None", stream: TextIO | None = None) -> Iterator[Progress]:
    """What a room reports to: `progress` itself; for True what the work around it reports to, else one bar on `stream`
    (stderr) in a terminal, or one line of a notebook's cell, which stays; else nothing.
    """
    stream, outer = stream or sys.stderr, _outer.get()
    notebook = not stream.isatty() and "ipykernel" in sys.modules
    if callable(progress):
        given = progress
    elif progress and outer is not None:
        given = outer
    elif not progress or not (stream.isatty() or notebook):
        given = ignore_progress
    else:
        with _bar(stream, notebook=notebook) as report, reporting_to(report):
            yield report
        return
    with reporting_to(given):
        yield _outer.get() or given


@contextmanager
def _bar(stream: TextIO, *, notebook: bool) -> Iterator[Progress]:
    from tqdm import tqdm

    place: Any = _CellLine() if notebook else stream
    bar: Any = None
    began = time.time()

    def report(stage: str, done: float, total: float | None, note: str) -> None:
        nonlocal bar
        if stage in (WORKER, NOTE):
            if stage == NOTE or (isinstance(note, Note) and note.facts["what"] == "lost"):  # the bar counts the others
                line = show_controls(note if stage == NOTE else f"{stage} {note}")
                if notebook:
                    _CellLine().write(line)
                else:
                    tqdm.write(line, file=stream)
            return
        unit, rest = unit_and_rest(note)
        uncounted = total is None and not done
        about: dict[str, Any] = {"total": total, "unit": f" {unit}".rstrip()}
        about["bar_format"] = "{desc} [{elapsed}{postfix}]" if uncounted else None
        # A bar each: rates count from its first report.
        if bar is None or (bar.desc, bar.unit) != (stage, about["unit"]) or done < bar.n:
            end()
            bar = tqdm(
                desc=stage,
                initial=done,
                file=place,
                unit_scale=True,
                dynamic_ncols=True,
                leave=False,
                smoothing=0,
                **about,
            )
        vars(bar).update(about | ({"start_t": began} if uncounted else {}))  # the time of all the work, without a rate
        bar.set_postfix_str(show_controls(rest), refresh=uncounted)
        bar.update(done - bar.n)

    def end() -> None:
        if bar is not None:
            bar.refresh()
            bar.close()

    try:
        yield report
    finally:
        end()


class _CellLine:
    """The stream of a bar in a notebook: what is written last is what the cell shows and what is saved with it."""

    encoding = "utf-8"

    def __init__(self) -> None:
        # The notebook brings IPython; the package does not ask for it.
        self._place, self._is_shown = import_module("IPython.display").DisplayHandle(), False

    def write(self, text: str) -> None:
        if line := text.strip():
            (self._place.update if self._is_shown else self._place.display)({"text/plain": line}, raw=True)
            self._is_shown = True

    def flush(self) -> None:
        """Nothing waits."""


class Note(str):
    """A note for people, and what it says as a record for programs, `facts`."""

    facts: Mapping[str, Any]

    def __new__(cls, text: str, **facts: Any) -> Self:
        made = super().__new__(cls, text)
        made.facts = facts
        return made


def worker_note(name: str, what: str, why: str = "") -> Note:
    """The note of a report of the stage WORKER; `what` is `started`, `ended` or `lost`."""
    return Note(f"{name} {what}" + (f": {why}" if why else ""), worker=name, what=what, why=why or None)


def fleet_note(unit: str, *, workers: int, leases_lost: int) -> Note:
    lost = f", {leases_lost} lease{'s' * (leases_lost != 1)} lost" if leases_lost else ""
    return Note(f"{unit}; {workers} worker{'s' * (workers != 1)}{lost}", workers=workers, leases_lost=leases_lost)


EARLY = getattr(signal, "SIGUSR1", None)
"""A scheduler's warning, often sent more than once; Windows has none."""
ENDING = (signal.SIGTERM,) if EARLY is None else (signal.SIGTERM, EARLY)


class StopSignal(SystemExit):
    """SIGTERM or SIGUSR1 in work without steps; exits with 75. A SystemExit, which `except Exception` lets through."""

    def __init__(self, number: int) -> None:
        super().__init__(Terminated.exit_code)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


def interruption(stop: BaseException | int, line: str) -> Interrupted:
    """The error of work that Ctrl-C or a signal ended, with the text `line`: Terminated for SIGTERM and SIGUSR1."""
    number = stop.number if isinstance(stop, StopSignal) else stop
    if not isinstance(number, int) or number == signal.SIGINT:
        return Interrupted(line)
    return Terminated(f"{signal.Signals(number).name} received: {line}")


class _Raising:
    """Raises StopSignal and remembers the signal, since some libraries swallow exceptions; ignores a later SIGUSR1."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.came: int | None = None

    def __call__(self, number: int, _: object) -> None:
        _leave_if_forked(number, self.process)
        if self.came is None or number != EARLY:
            self.came = number
            raise StopSignal(number)


def _leave_if_forked(number: int, process: int) -> None:
    """Ends a child that was forked from `process`, as the signal would without a handler."""
    if os.getpid() != process:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


@contextmanager
def end_at_signals() -> Iterator[None]:
    """For the main thread: SIGTERM and SIGUSR1 raise StopSignal inside the block where they would kill the process, and
    are ignored after it.
    """
    taken = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    raising = _Raising()
    for number in taken:
        signal.signal(number, raising)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_IGN)


class Checkpoints:
    """Calls `save` at most every `every` seconds, and after the first Ctrl-C, SIGTERM or SIGUSR1. A second Ctrl-C or
    SIGTERM stops at once; SIGUSR1, of which a scheduler may send several, never does. Only the main thread receives
    signals.
    """

    def __init__(self, save: Callable[[], None], *, every: float) -> None:
        self._save, self._every = save, every
        self._saved = time.monotonic()
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Checkpoints":
        self._saved, self._process = time.monotonic(), os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *ENDING):
                before = signal.getsignal(number)
                if isinstance(before, _Raising) and before.came is not None:
                    self._came.append(before.came)
                if number == signal.SIGINT or before is signal.SIG_DFL or isinstance(before, _Raising):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def step_done(self, stopped: str = "stopped after saving; run the same command again to go on from here") -> None:
        """Saves if it is time; after a signal raises Interrupted or Terminated with the text `stopped`."""
        if self._came or time.monotonic() - self._saved >= self._every:
            self._save()
            self._saved = time.monotonic()
        if self._came:
            raise interruption(self._came[0], stopped)

    def _note(self, number: int, _: object) -> None:
        if number != signal.SIGINT:
            _leave_if_forked(number, self._process)
        if number in self._came and number != EARLY:
            raise KeyboardInterrupt if number == signal.SIGINT else StopSignal(number)
        self._came.append(number)

    def __exit__(self, kind: object, *_: object) -> None:
        for number, before in self._before.items():
            if before is not None:
                signal.signal(number, before)
        if kind is None and self._came:  # after the last step
            self.step_done()
