"""Ctrl-C while a public name is first used: the import ends, and whoever asks again gets the name."""

import signal
import sys
import threading
from pathlib import Path

import pytest

import mnemoscope as ms
from mnemoscope import foundation
from mnemoscope.foundation import memory_names

ROOM = "mnemoscope.foundation.memory_names"
SLOW = "import os, signal; os.kill(os.getpid(), signal.SIGINT); MemoryId = [] + [7]"


@pytest.fixture(autouse=True)
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of `ms.MemoryId` is another one here, not imported yet, which Ctrl-C interrupts as it is imported."""
    (tmp_path / "memory_names.py").write_text(SLOW)
    monkeypatch.setattr(foundation, "__path__", [str(tmp_path)])
    monkeypatch.setattr(foundation, "memory_names", memory_names)  # put back afterwards
    monkeypatch.delitem(sys.modules, ROOM)


def test_an_interrupted_import_is_whole() -> None:
    with pytest.raises(KeyboardInterrupt):
        _ = ms.MemoryId
    assert sys.modules[ROOM].MemoryId == [7]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ms.MemoryId == [7]


def test_somebody_else_s_handler_stays_and_other_threads_set_none() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        other = threading.Thread(target=lambda: came.append(ms.MemoryId[0]))
        other.start()
        other.join()
        assert sorted(came) == [2, 7]
    finally:
        signal.signal(signal.SIGINT, before)
