"""Output that cannot be written: one line, exit code 2, no traceback; and files never get a stream's number."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(command: str, streams: str) -> tuple[int, str]:
    line = f'exec "$0" -m mnemoscope {command} {streams}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.fast(0, full=1)
@pytest.mark.parametrize(
    ("streams", "why"),
    [(">/dev/full", "No space left on device"), (">&-", "it was closed before the command began")],
    ids=["full", "closed"],
)
def test_output_that_cannot_be_written_is_told_in_one_line(streams: str, why: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    assert run("--help", streams) == (2, f"mnemoscope: the output cannot be written: {why}\n")
    code, said = run("inspect --json nowhere/at/all", streams)
    assert code == 2
    assert said.count("\n") == 1, said
    assert "nowhere" in said, "what went wrong first is what is told"


@pytest.mark.fast(0, full=1)
@pytest.mark.parametrize("streams", ["2>/dev/full", ">&- 2>&-"])
def test_a_line_that_nobody_can_be_told_changes_no_exit_code(streams: str) -> None:
    assert run("inspect nowhere/at/all", streams) == (2, "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    line = '"$0" -m mnemoscope --help | head -n 1 >/dev/null; echo done'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_no_file_of_ours_gets_the_number_of_a_closed_stream() -> None:
    script = (
        "import os, sys\n"
        "from mnemoscope.cli.runner import run\n"
        "def app(**_):\n"
        "    print(os.open(os.devnull, os.O_RDONLY) > 2, file=sys.stderr)\n"
        "run(app, [])\n"
    )
    line = 'exec "$0" -c "$1" >&-'
    done = subprocess.run(["sh", "-c", line, sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stderr == "True\n"
