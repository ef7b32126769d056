"""Ctrl-C while a public name is first used: the import ends, and whoever asks again gets the name."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

import mnemoscope as ms

SLOW = "import os, signal; os.kill(os.getpid(), signal.SIGINT); whole = [] + [7]"


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A room that Ctrl-C interrupts as it is imported, under a name of this test's own."""
    name = f"slow_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(SLOW)
    monkeypatch.setattr(ms, "__path__", [*ms.__path__, str(tmp_path)])
    monkeypatch.setattr(ms, "_ROOMS", {name: ("whole",)})
    return name


def test_an_interrupted_import_is_whole(slow: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        _ = ms.whole
    assert sys.modules[f"mnemoscope.{slow}"].whole == [7]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ms.whole == [7]


def test_somebody_else_s_handler_stays_and_other_threads_set_none(slow: str) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        other = threading.Thread(target=lambda: came.append(ms.whole[0]))
        other.start()
        other.join()
        assert sorted(came) == [2, 7]
    finally:
        signal.signal(signal.SIGINT, before)
