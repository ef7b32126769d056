"""SIGTERM and SIGUSR1 at real processes: exit code 75, one line last, the state saved, nothing half-written."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mnemoscope as ms
from mining.conftest import tables_of
from mining_killed import sentences
from mnemoscope.models.opening.handmade.models import WORDS
from support.handbuilt_atlas import build_atlas

pytestmark = pytest.mark.full

OPTIONS = ("--split", "line", "--batch-tokens", "200", "--checkpoint-every", "1000")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(sentences(800, WORDS[2:], 0))
    return path


@contextmanager
def begin(arguments: Sequence[object], *, first: str = "") -> "Iterator[subprocess.Popen[str]]":
    """The command as a process, in which the Python code `first` runs before it; killed where a test fails."""
    script = f"import sys\n{first}\nfrom mnemoscope.__main__ import main\nsys.exit(main())\n"
    words = [str(word) for word in arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *words] if first else [sys.executable, "-m", "mnemoscope", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def read_until(process: "subprocess.Popen[str]", beginning: str) -> None:
    """Waits for the line on stderr that begins so."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(beginning):
            return
    pytest.fail(f"ended without {beginning!r}")


def test_mining_saves_and_goes_on_to_the_same_bytes(text: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": "line", "batch_tokens": 200}
    seen: list[float] = []

    def note(stage: str, done: float, total: float | None, unit: str) -> None:
        seen.extend([done] if stage == "mining" else [])

    whole = tables_of(ms.mine("handmade:planted", text, out=tmp_path / "whole", progress=note, **options))
    steps = len(seen)
    atlas = tmp_path / "atlas"
    with begin(["mine", "handmade:planted", text, "--out", atlas, *OPTIONS]) as process:
        read_until(process, "mining: ")
        process.send_signal(signal.SIGUSR1)
        said = process.communicate()[1].splitlines()
    assert process.returncode == 75, said
    advice = "stopped after saving; run the same command again to go on from here"
    assert said[-1] == f"mnemoscope: SIGUSR1 received: {advice}"
    assert len(list((atlas / "work").rglob("state.safetensors"))) == 1
    assert not (atlas / ".lock").exists()

    ms.mine("handmade:planted", text, out=atlas, progress=note, **options)
    assert steps < len(seen) < 2 * steps, "began anew, or was not stopped"
    assert tables_of(atlas) == whole


def test_the_second_sigterm_stops_at_once(text: Path, tmp_path: Path) -> None:
    slow = "import time\nfrom mnemoscope.mining.text.batch_loader import BatchLoader\n"
    slow += "def wait(*_): print('waiting', file=sys.stderr, flush=True), time.sleep(100)\nBatchLoader.__call__ = wait"
    arguments = ["mine", "handmade:planted", text, "--out", tmp_path / "atlas", *OPTIONS]
    with begin(arguments, first=slow) as process:
        read_until(process, "waiting")
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert process.returncode == 75
    assert said[-1].endswith("SIGTERM received: stopped; what is done stays, run the same command again to go on")
    assert not list((tmp_path / "atlas/work").rglob("state.safetensors"))


def test_while_the_model_is_loading(text: Path, tmp_path: Path) -> None:
    with begin(["mine", "builtin:pydocs", text, "--out", tmp_path / "atlas", "--json"]) as process:
        read_until(process, "loading: ")
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate()
    said = "SIGUSR1 received: stopped; what is done stays, run the same command again to go on"
    assert (process.returncode, err.splitlines()) == (75, [f"mnemoscope: {said}"])
    assert json.loads(out) == {"error": "Terminated", "message": said, "exit_code": 75}
    assert not (tmp_path / "atlas").exists()


def at_the_import_of(module: str, name: str) -> str:
    """Code that sends this process a signal when a module is imported."""
    return (
        "import os, signal, sys, time\n"
        "class Late:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), signal.SIG{name})\n"
        "            time.sleep(60)\n"
        "sys.meta_path.insert(0, Late())"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("mnemoscope.cli", "USR1"), ("typer", "TERM")),
        *(("mnemoscope.cli.start.mine", "TERM"), ("mnemoscope.questions", "TERM")),
    ],
)
def test_in_a_verb_and_while_the_verbs_are_imported(module: str, name: str, tmp_path: Path) -> None:
    atlas = build_atlas(tmp_path / "atlas")
    before = {path: path.read_bytes() for path in sorted(atlas.rglob("*")) if path.is_file()}
    with begin(["analyze", atlas], first=at_the_import_of(module, name)) as process:
        out, err = process.communicate()
    assert (process.returncode, out, err) == (75, "", f"mnemoscope: stopped by SIG{name}\n")
    assert {path: path.read_bytes() for path in sorted(atlas.rglob("*")) if path.is_file()} == before


AMIDST = """
import os, signal
from mnemoscope.web import app
made = app.create_app
def create_app(settings):
    inner = made(settings)
    async def answer(scope, receive, send):
        await inner(scope, receive, send)
        os.kill(os.getpid(), signal.{name})
    answer.state = inner.state
    return answer
app.create_app = create_app
"""
"""Sends this process a signal in the midst of a request, in which the server takes what is raised for its own error."""


@pytest.mark.parametrize("amidst", [False, True])
@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_the_server_ends_so_too(name: str, amidst: bool, tmp_path: Path) -> None:
    first = AMIDST.format(name=f"SIG{name}") if amidst else ""
    with begin(["serve", build_atlas(tmp_path / "atlas"), "--port", "0"], first=first) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        said = re.fullmatch(r"open (http://127\.0\.0\.1:\d+/) in a browser; Ctrl-C ends it\n", line)
        assert said
        with urllib.request.urlopen(said[1] + "index.json", timeout=30):
            pass
        if not amidst:
            process.send_signal(getattr(signal, f"SIG{name}"))
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (75, f"mnemoscope: stopped by SIG{name}\n")
