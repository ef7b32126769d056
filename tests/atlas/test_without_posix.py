"""An atlas is read, analysed, reported and written where the system has none of what only POSIX has, as on Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.handbuilt_atlas import build_atlas

HIDDEN = """
import os, signal, sys
import multiprocessing.util, psutil, socket, subprocess, tempfile  # they do without in another way there
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for owner, names in {os: ("pread", "pwrite", "O_NOFOLLOW", "register_at_fork", "getuid", "geteuid", "sysconf"),
                     signal: ("SIGUSR1",)}.items():
    for name in names:
        delattr(owner, name)
"""


def without_posix(script: str, *arguments: object) -> str:
    """The output of a script that runs where these modules and names are hidden."""
    command = [sys.executable, "-c", HIDDEN + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_every_module_of_the_readers_is_imported() -> None:
    script = """
from importlib import import_module
from pathlib import Path
import mnemoscope
rooms = ("foundation", "atlas", "questions", "patterns", "search", "annotate", "show", "web")
here = Path(mnemoscope.__file__).parent
files = [path for room in rooms for path in (here / room).rglob("*.py")]
names = [".".join(path.relative_to(here.parent).with_suffix("").parts) for path in files]
for name in names:
    if name.split(".")[-1] not in ("model_worker", "model_answers", "attribution_answers"): import_module(name)
import mnemoscope.foundation.heap, mnemoscope.foundation.progress, mnemoscope.cli.app
print(len(names) > 80)
"""
    assert without_posix(script) == "True\n"


def test_an_atlas_is_read_analysed_searched_and_kept_from_a_second_writer(tmp_path: Path) -> None:
    script = """
from pathlib import Path
import mnemoscope as ms
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.foundation.heap import give_back_freed_memory
from mnemoscope.foundation.progress import Checkpoints, end_at_signals
from mnemoscope.questions import write_all
from mnemoscope.search import open_index
atlas = ms.open_atlas(sys.argv[1])
with end_at_signals(), Checkpoints(lambda: None, every=1) as points:
    print(len(atlas["L0.M1"].triggers()) > 0, ms.verify(atlas.path))
    points.step_done()
write_all(atlas)
give_back_freed_memory()
with open_index(atlas) as index: print(index.search("capital", fields=["triggers"]).total > 0)
with lock_folder(atlas.path):
    try:
        with lock_folder(atlas.path): pass
    except ms.errors.StoreFailed as error: print(error)
with lock_folder(atlas.path): pass
print((atlas.path / ".lock").exists())
"""
    read, found, refused, left = without_posix(script, build_atlas(tmp_path / "atlas")).splitlines()
    assert (read, found, left) == ("True []", "True", "False")
    assert refused.count("another process (pid") == 1
