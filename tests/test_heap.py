"""Memory that was freed between what is still in use goes back to the operating system."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mnemoscope.foundation.heap import HeapTrimmer

# In a process of its own: what earlier tests left free would take the pieces in, and no hole would show.
PREPARED = """
import psutil
from mnemoscope.foundation.heap import HeapTrimmer

MIB = 1 << 20

def resident():
    seen = psutil.Process().memory_info()
    return seen.rss - seen.shared  # mapped files aside

def make_holes():
    pieces = [bytes([1]) * (MIB // 16) for _ in range(64 * 16)]  # from the C library's heap
    return pieces[::100]

heap = HeapTrimmer(room={room} * MIB)
heap.check()
before = resident()
kept = make_holes()
holes = resident() - before
heap.check()
"""


def alone(script: str, *, room: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARED.format(room=room) + script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_holes_go_back_when_they_have_become_much() -> None:
    alone(
        "assert holes > 32 * MIB, 'no holes, so this shows nothing'\n"
        "assert resident() - before < 16 * MIB\n"
        "assert all(piece[0] == 1 for piece in kept)\n",
        room=16,
    )


def test_little_growth_is_left_alone() -> None:
    alone("assert resident() - before > 32 * MIB\nheap.trim()\nassert resident() - before < 16 * MIB\n", room=256)


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    heap = HeapTrimmer(room=-1)  # trims at every look, where it can
    heap.check()
    heap.trim()


FREED = """
import threading
import numpy as np
import psutil
from mnemoscope.foundation.heap import give_back_freed_memory

{first}

def resident():
    seen = psutil.Process().memory_info()
    return seen.rss - seen.shared  # mapped files aside

def read(kept=[]):
    # Something larger is given back first; then the C library takes what is large from its heaps, too.
    del_me = np.ones(24 << 17)
    del del_me
    pieces = [np.ones(1 << 17 << k) for k in (1, 4, 1, 4, 1)]
    kept.append(pieces[4])

def in_threads():
    for _ in range(6):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

before = resident()
in_threads()
print((resident() - before) >> 20)
"""


def held_after(first: str) -> int:
    """MiB that a process holds, of which 12 are in use, after threads have read and ended."""
    script = FREED.format(first=first)
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def test_what_was_large_is_given_back_at_once() -> None:
    assert held_after("give_back_freed_memory()") < 20
    assert held_after("") > 30, "the C library gives it back by itself, so this shows nothing"


@pytest.mark.full
def test_too_few_addresses_are_one_line() -> None:
    """A limit as of `ulimit -v` aborts the renderer of figures, and mining, from within libraries."""
    script = """
import resource
from pathlib import Path
from mnemoscope.show.figures.page_svg import grammar
from mnemoscope.mining.run import begin_mining
from mnemoscope.foundation.heap import require_addresses
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.mining_options import MiningOptions
grammar()
resource.setrlimit(resource.RLIMIT_AS, (3_000_000 << 10, resource.RLIM_INFINITY))
require_addresses(3_000_000 << 10, "this")
for refused in (grammar, lambda: begin_mining("none", "none", Path("none"), MiningOptions())):
    try: refused()
    except OptionError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    figure, mining = done.stdout.splitlines()
    assert figure.startswith("drawing a figure needs an address space of 71 GB, most of it reserved")
    assert mining.startswith("mining needs an address space of 4 GB")
    assert "may use 3.1 GB" in mining
