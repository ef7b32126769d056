"""Leases: of all that try one gets a task, at every moment one listing tells who has what."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.errors import StoreFailed
from mnemoscope.runs.workers import leases as leases_file
from mnemoscope.runs.workers.leases import DONE, FREE, Lease, LeaseFolder


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    made = LeaseFolder(tmp_path, "removals together", 5)
    made.make()
    return made


def test_a_lease_goes_from_hand_to_hand(folder: LeaseFolder) -> None:
    assert folder.path.name == "removals-together-of-5"
    assert LeaseFolder.find(folder.path.parents[2], "removals together") is not None
    assert LeaseFolder.find(folder.path.parents[2], "removals") is None
    assert folder.read() == [Lease(number, 0, FREE) for number in range(5)]
    first = folder.read()[2]
    taken = folder.take(first, "a-1")
    assert taken == Lease(2, 0, "a-1")
    assert folder.take(first, "b-2") is None
    assert folder.read()[2] == taken
    lost = folder.take(taken, "b-2")
    assert lost == Lease(2, 1, "b-2")
    assert folder.rename(taken, DONE) is None
    back = folder.rename(lost, FREE)
    assert back == Lease(2, 1, FREE)
    again = folder.take(back, "c-3")
    assert again == Lease(2, 1, "c-3")
    done = folder.rename(again, DONE)
    assert done is not None
    assert folder.read()[2] == done == Lease(2, 1, DONE)
    folder.rename(done, FREE, lost=1)
    assert folder.read()[2] == Lease(2, 2, FREE)


def test_making_again_keeps_what_is_there(folder: LeaseFolder) -> None:
    taken = folder.take(folder.read()[0], "a-1")
    folder.make()
    assert folder.read() == [taken, *(Lease(number, 0, FREE) for number in range(1, 5))]


def test_of_all_that_try_one_gets_it(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path, "mining", 200)
    folder.make()
    won: dict[str, list[int]] = {f"w-{number}": [] for number in range(8)}
    barrier = threading.Barrier(len(won))

    def work(name: str) -> None:
        own = LeaseFolder(tmp_path, "mining", 200)
        barrier.wait()
        for lease in own.read():
            if lease.owner == FREE and own.take(lease, name):
                won[name].append(lease.number)

    threads = [threading.Thread(target=work, args=(name,)) for name in won]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for own in won.values() for number in own) == list(range(200))
    for name, own in won.items():
        assert [lease.number for lease in folder.read() if lease.owner == name] == own


def test_a_rename_that_was_done_though_the_answer_was_lost_counts(folder: LeaseFolder, monkeypatch: Any) -> None:
    real = os.rename

    def lose_the_answer(source: Path, target: Path) -> None:
        real(source, target)
        raise FileNotFoundError(source)

    monkeypatch.setattr(leases_file.os, "rename", lose_the_answer)
    assert folder.take(folder.read()[0], "a-1") == Lease(0, 0, "a-1")


def test_missing_files_are_told(folder: LeaseFolder) -> None:
    (folder.path / Lease(3, 0, FREE).file_name).unlink()
    with pytest.raises(StoreFailed, match="lacks 1 of 5 files"):
        folder.read()
