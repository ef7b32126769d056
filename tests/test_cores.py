"""The cores that a process may use."""

import os
import sys

import pytest

from mnemoscope.foundation.processes import usable_cores


def test_the_cores_that_a_process_is_tied_to_count_and_elsewhere_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.sched_getaffinity(0)
    one = min(cores)
    os.sched_setaffinity(0, {one})
    try:
        assert usable_cores() == {one}
    finally:
        os.sched_setaffinity(0, cores)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert len(usable_cores()) == os.cpu_count()
