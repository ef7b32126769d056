"""Progress on a stream that is no terminal: first, now and then, last; rate and time left."""

import io
import json
import sys

import pytest

from mnemoscope.cli.progress import Lines, in_unit, json_events, loading, reporting, spoken_time
from mnemoscope.foundation.progress import WORKER, fleet_note, worker_note


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_first_every_ten_seconds_and_last() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(stream, clock=clock)
    for second in range(0, 26):
        clock.now = second
        lines("mining", 1000 + 100 * second, 11000, "tokens")
    lines.finish()
    assert stream.getvalue().splitlines() == [
        "mining: 1,000 of 11,000 tokens (9 %)",
        "mining: 2,000 of 11,000 tokens (18 %), 100 tokens/s, 1 min 30 s left",
        "mining: 3,000 of 11,000 tokens (27 %), 100 tokens/s, 1 min 20 s left",
        "mining: 3,500 of 11,000 tokens (32 %), 100 tokens/s, 1 min 15 s left",
    ]


def test_a_finished_stage_is_printed_once_and_the_next_one_begins() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(stream, clock=clock)
    lines("reading", 1, None, "a.txt")
    clock.now = 2
    lines("reading", 5, None, "b.txt")
    lines("values", 0, 8, "memories")
    clock.now = 4
    lines("values", 8, 8, "memories")
    lines.finish()
    assert stream.getvalue().splitlines() == [
        "reading: 1, a.txt",
        "reading: 5, 2/s, b.txt",
        "values: 0 of 8 memories (0 %)",
        "values: 8 of 8 memories (100 %), 4 memories/s",
    ]


def test_an_empty_total_does_not_divide_by_zero() -> None:
    stream = io.StringIO()
    Lines(stream)("mining", 0, 0, "tokens")
    assert stream.getvalue() == "mining: 0 of 0 tokens\n"


def test_a_stage_without_a_count_says_only_its_note() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines("loading", 0, None, "gpt2")
    lines("waiting", 0, None)
    lines.finish()
    assert stream.getvalue() == "loading: gpt2\nwaiting\n"


def test_units_and_durations() -> None:
    assert in_unit("tokens") == ("tokens", "", 1.0)
    assert in_unit("bytes") == ("MB", "", 1e-6)
    assert in_unit("loss 3.1") == ("", "loss 3.1", 1.0)
    assert in_unit("bytes; 2 workers") == ("MB", "2 workers", 1e-6)
    assert in_unit("loss 3.1; odd") == ("", "loss 3.1; odd", 1.0)
    assert [spoken_time(seconds) for seconds in (0.4, 59, 200, 7500)] == ["0 s", "59 s", "3 min 20 s", "2 h 5 min"]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_workers_stand_behind_the_time_left() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(stream, clock=clock)
    lines("mining", 214_000, 5_000_000, fleet_note("tokens", workers=1, leases_lost=0))
    lines(WORKER, 0, None, worker_note("w-1", "lost", "killed by SIGKILL"))
    clock.now = 20
    lines("mining", 1_234_000, 5_000_000, fleet_note("tokens", workers=4, leases_lost=1))
    clock.now = 25
    lines("mining", 5_000_000, 5_000_000, fleet_note("tokens", workers=3, leases_lost=2))
    assert stream.getvalue().splitlines() == [
        "mining: 214,000 of 5,000,000 tokens (4 %), 1 worker",
        "worker w-1 lost: killed by SIGKILL",
        "mining: 1,234,000 of 5,000,000 tokens (25 %), 51,000 tokens/s, 1 min 14 s left, 4 workers, 1 lease lost",
        "mining: 5,000,000 of 5,000,000 tokens (100 %), 191,440 tokens/s, 3 workers, 2 leases lost",
    ]


def test_for_machines_every_line_is_a_document() -> None:
    clock, stream = Clock(), io.StringIO()
    events = json_events(stream, clock=clock)
    events("loading", 0, None, "a\x9bmodel\n")
    events(WORKER, 0, None, worker_note("w-1", "started"))
    events("mining", 1000, 5000, fleet_note("tokens", workers=4, leases_lost=0))
    for now in (0.5, 2.0, 2.5):
        clock.now = now
        events("mining", 1000 + 1000 * now, 5000, fleet_note("tokens", workers=3, leases_lost=1))
    events(WORKER, 0, None, worker_note("w-2", "lost", "killed: so it is said"))
    events(WORKER, 0, None, worker_note("w-1", "ended"))
    events("reading text", 5_000_000, None, "bytes")
    events.finish()
    unsaid = {"workers": None, "leases_lost": None, "note": None}
    mining = {"event": "progress", "stage": "mining", "total": 5000, "unit": "tokens"}
    first = {"done": 1000, "rate": None, "seconds_left": None, "workers": 4, "leases_lost": 0, "note": "4 workers"}
    later = {"workers": 3, "leases_lost": 1, "note": "3 workers, 1 lease lost", "rate": 1000}
    nothing = {"event": "progress", "total": None, "rate": None, "seconds_left": None, **unsaid}
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {**nothing, "stage": "loading", "done": 0, "unit": None, "note": "a\x9bmodel\n"},
        {"event": "worker", "worker": "w-1", "what": "started", "why": None},
        {**mining, **first},
        {**mining, **later, "done": 3000, "seconds_left": 2},
        {"event": "worker", "worker": "w-2", "what": "lost", "why": "killed: so it is said"},
        {"event": "worker", "worker": "w-1", "what": "ended", "why": None},
        {**mining, **later, "done": 3500, "seconds_left": 1.5},
        {**nothing, "stage": "reading text", "done": 5_000_000, "unit": "bytes"},
    ]
    assert stream.getvalue().isascii()


def test_events_go_to_stderr_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with reporting(events=True) as progress:
        progress("mining", 1, 2, "tokens")
    assert json.loads(terminal.getvalue())["done"] == 1


def test_off_a_terminal_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting() as progress:
        progress("mining", 1, 2, "tokens")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "mining: 1 of 2 tokens (50 %)\n")


def test_on_a_terminal_a_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with reporting() as progress:
        progress("mining", 100, 200, "layer [3] \x1b[2J")
        progress("reading", 2_500_000, 10_000_000, "bytes")
        progress("reading", 2_600_000, 10_000_000, "bytes; 4 workers, 1 lease lost")
        progress(WORKER, 0, None, worker_note("w-1", "started"))
        progress(WORKER, 0, None, worker_note("w-2", "lost", "killed [by] SIGKILL"))
    shown = ("mining", "100/200", "layer [3]", "2.60M/10.0M", " bytes/s", "4 workers, 1 lease lost")
    for said in (*shown, "worker w-2 lost: killed [by] SIGKILL"):
        assert said in terminal.getvalue()
    for unsaid in ("\x1b[2J", "w-1"):
        assert unsaid not in terminal.getvalue()


def test_a_model_that_loads_long_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    written = ""
    with loading("/a/folder/large.gguf", after=0.0):
        while not written:
            written = capsys.readouterr().err
    with loading("small", after=3600.0):
        pass
    assert (written, capsys.readouterr().err) == ("loading: large.gguf\n", "")
