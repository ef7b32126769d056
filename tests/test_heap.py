"""Memory that a server frees goes back to the operating system; too little of it is said in one line."""

import subprocess
import sys

import pytest

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
