"""Progress on a stream that is no terminal: first, now and then, last; rate and time left."""

import io
import sys

import pytest

from mnemoscope.cli.progress import Lines, in_unit, reporting, spoken_time


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
    assert [spoken_time(seconds) for seconds in (0.4, 59, 200, 7500)] == ["0 s", "59 s", "3 min 20 s", "2 h 5 min"]


def test_off_a_terminal_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting() as progress:
        progress("mining", 1, 2, "tokens")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "mining: 1 of 2 tokens (50 %)\n"


def test_on_a_terminal_a_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with reporting() as progress:
        progress("mining", 100, 200, "layer [3]")
        progress("reading", 2_500_000, 10_000_000, "bytes")
    assert "mining" in terminal.getvalue()
    assert "2.5/10 MB" in terminal.getvalue()
    assert "100/200" in terminal.getvalue()
    assert "layer [3]" in terminal.getvalue()
