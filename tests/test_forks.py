"""A forked process answers, or says in one line that it cannot; it never waits for threads that its parent has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.handbuilt_atlas import build_atlas

FORK = """
import os, signal, sys
import mnemoscope as ms
def in_child(*asks):
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        signal.alarm(60)
        for ask in asks:
            try: print(ask())
            except ms.errors.Forked as error: print("Forked:", error)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def lines_of(script: str, *arguments: object, **environment: str) -> list[str]:
    """What a script prints after `FORK`, by lines."""
    command = [sys.executable, "-W", "ignore", "-c", FORK + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_forked_reader_reads_or_says_that_it_cannot(tmp_path: Path) -> None:
    script = """
from mnemoscope.search import open_index
atlas = ms.open_atlas(sys.argv[1])
read = lambda: len(atlas["L0.M1"].triggers())
in_child(read)
print(read())
with open_index(atlas) as index:
    search = lambda: index.search("capital", fields=["triggers"]).total
    print(search())
    in_child(read, lambda: atlas.scan("tokens"), lambda: ms.verify(atlas.path), search)
    in_child(lambda: in_child(read))
"""
    lines = lines_of(script, build_atlas(tmp_path / "a"))
    first, second, found, read, scan, verified, searched, in_grandchild, _ = lines
    assert (first, searched) == (second, found)
    assert int(first) * int(found) > 0
    assert verified == "[]"
    for refused in (read, scan, in_grandchild):
        assert re.fullmatch(r"Forked: process .*multiprocessing.get_context\('spawn'\).*", refused)


def test_a_temporary_index_is_removed_by_its_own_process(tmp_path: Path) -> None:
    script = """
from pathlib import Path
from mnemoscope.search import build_index
from mnemoscope.search.index import Index
atlas = ms.open_atlas(sys.argv[1])
path = build_index(atlas)
index = Index(atlas, path, rebuild=lambda: path, temporary=path.parent)
in_child(index.close)
print(path.exists())
index.close()
print(path.exists())
"""
    assert lines_of(script, build_atlas(tmp_path / "a")) == ["None", "True", "False"]


@pytest.mark.full
def test_a_forked_process_runs_a_model_with_one_thread() -> None:
    """OpenMP's threads stay behind; 1 is as many as PyTorch needs none for."""
    script = """
import torch
from mnemoscope.models import load_model, set_threads
from mnemoscope.models.modules.switches import steady
torch.set_num_threads(2)
numbers = torch.ones(1 << 20)
with steady(): whole = numbers.exp().sum().item()
def again():
    with steady(): return numbers.exp().sum().item() == whole, torch.get_num_threads()
in_child(again, lambda: set_threads(None), torch.get_num_threads, lambda: set_threads(2))
print(torch.get_num_threads())
set_threads(2)
"""
    ran, _, threads, refused, own = lines_of(script, OMP_NUM_THREADS="2")
    assert ran.endswith(", 1)")
    assert (threads, own) == ("1", "2")
    assert re.fullmatch("Forked: .*has 1 of the 2 threads wanted.*", refused)
