"""Patterns, answers and reports killed at random moments: the same command again leaves the bytes of a run in peace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mnemoscope

pytestmark = pytest.mark.full

TESTS = Path(__file__).parents[1]
RUNS = TESTS.parent / "runs"


@pytest.mark.timeout(900)  # each kill of a report costs a start, and the machine may be busy
@pytest.mark.parametrize(("verb", "kills"), [("analyze", 5), pytest.param("report", 3, marks=pytest.mark.slow)])
def test_killed_at_random_moments_the_bytes_are_the_same(verb: str, kills: int, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(mnemoscope.__file__).parents[1]), str(TESTS)])
    ran = subprocess.run(
        [sys.executable, str(RUNS / "mining_killed.py"), verb, str(kills), "7", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads(ran.stdout)
    assert report["kills"] >= kills
    assert len(report["killed in"]) >= 2, report
