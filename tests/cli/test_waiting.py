"""Threads sleep where other processes work, unless somebody has settled how they wait."""

import os
import subprocess
import sys
import time

import pytest

from mnemoscope.cli.waiting import POLICY, Moment, choose_waiting, moment


@pytest.fixture(autouse=True)
def _unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "")  # so that it is as it was after the test, whatever is set in between
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("work", "own", "policy"),
    [(1.0, 0.1, "PASSIVE"), (0.25, 0.2, None), (0.2, 0.2, None), (0.0, 0.2, None), (0.6, 0.0, "PASSIVE")],
)
def test_threads_sleep_where_others_work(work: float, own: float, policy: str | None) -> None:
    choose_waiting(Moment(10.0, 500.0, 1.0), Moment(11.0, 500.0 + work, 1.0 + own))
    assert os.environ.get(POLICY) == policy


def test_too_short_a_look_says_nothing() -> None:
    choose_waiting(Moment(10.0, 500.0, 1.0), Moment(10.01, 500.02, 1.0))
    assert POLICY not in os.environ


@pytest.mark.parametrize("name", [POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_somebody_has_settled_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "ACTIVE")
    choose_waiting(Moment(10.0, 500.0, 1.0), Moment(11.0, 502.0, 1.0))
    assert os.environ.get(POLICY) == ("ACTIVE" if name == POLICY else None)


def test_other_processes_are_seen_and_this_one_is_not_among_them() -> None:
    before = moment()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1.0)
        after = moment()
        busy.kill()
    assert after.own - before.own < 0.5
    assert after.work - before.work > 0.3


@pytest.mark.whole
def test_it_is_settled_before_torch_is_imported() -> None:
    script = (
        "import sys\nfrom mnemoscope import cli\nseen = []\n"
        "cli.choose_waiting = lambda *_: seen.append('torch' in sys.modules)\n"
        "cli.main(['inspect', 'handmade:worked-example'])\n"
        "assert seen == [False], seen\nassert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
