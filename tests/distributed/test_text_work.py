"""Workers that share the text: whatever dies, however many they are, every batch is counted once."""

import errno
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed.fleet import FleetWorker, Outcome, closed_state, one_process, run_fleet, settle
from mining.conftest import WORDS, tiny_model
from mining_killed import sentences
from mnemoscope.errors import Interrupted, PartsDiffer, StoreFailed
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining import run_mining
from mnemoscope.mining.text.state import MiningState
from mnemoscope.mining.text_pass import counted_anywhere
from mnemoscope.models import LanguageModel
from mnemoscope.runs import states
from mnemoscope.runs.run import Run, choose_lease
from mnemoscope.runs.states import STATES, StateFolder, WorkerClosed, closed_folders
from mnemoscope.runs.workers.heartbeats import beat_path
from mnemoscope.runs.workers.leases import DONE, TEXT, LeaseFolder

OPTIONS = MiningOptions(split="line", triggers=4, batch_tokens=60, checkpoint_every=0)
"""Workers save after every step."""


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2")


def write_lines(path: Path) -> Path:
    path.write_text(sentences(500, tuple(WORDS), 7))
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "text.txt")


@pytest.fixture(scope="module")
def whole(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> MiningState:
    """What one process makes of the same text."""
    folder = tmp_path_factory.mktemp("one")
    options = replace(OPTIONS, checkpoint_every=60.0)
    return one_process(folder / "atlas", model, write_lines(folder / "text.txt"), options)


def assert_equal_states(a: MiningState, b: MiningState) -> None:
    """Every tensor of both, bit for bit; where a single run and workers differ by design is left out."""
    others = b.tensors()
    assert a.tensors().keys() == others.keys()
    for name, tensor in a.tensors().items():
        assert torch.equal(tensor, others[name]), name
    assert a.halved == b.halved


@dataclass
class Shared:
    """A run of the lines that is settled for workers; they save after every step unless told."""

    model: LanguageModel
    lines: Path
    run: Run

    @property
    def directory(self) -> Path:
        return self.run.directory

    def worker(self, name: str) -> FleetWorker:
        return FleetWorker(self.run, name, self.model)

    def finish(self, worker: FleetWorker) -> None:
        """Works until nothing is left."""
        while worker.step():
            pass
        worker.work.end()

    def fleet(self, workers: int, deaths: int) -> Outcome:
        return run_fleet(self.run, self.model, workers=workers, deaths=deaths, seed=workers)

    def state(self) -> MiningState:
        return closed_state(self.run, self.model)

    def leases(self) -> LeaseFolder:
        leases = LeaseFolder(self.directory, TEXT, self.run.leases)
        leases.make()
        return leases

    def closed(self) -> list[str]:
        return [folder.name for folder in closed_folders(self.directory)]


def share(model: LanguageModel, lines: Path, directory: Path, *, every: float = 0, **more: Any) -> Shared:
    return Shared(model, lines, settle(directory, model, lines, replace(OPTIONS, checkpoint_every=every), **more))


@pytest.fixture
def shared(model: LanguageModel, lines: Path, tmp_path: Path) -> Shared:
    return share(model, lines, tmp_path / "a")


@pytest.mark.full
@pytest.mark.parametrize(("workers", "deaths"), [(1, 10), (2, 1), (8, 3), (64, 19)])
def test_a_fleet_with_deaths_counts_every_batch_once(
    workers: int, deaths: int, shared: Shared, whole: MiningState
) -> None:
    run = shared.run
    assert run.batches > 90
    found = shared.fleet(workers, deaths)
    assert found.state.finished == [(0, run.batches)]
    assert_equal_states(found.state, whole)
    assert len(found.lost) == deaths
    assert max(found.lost, default=0) <= run.lease_batches  # at most a lease of work each
    # One worker goes on with the state of the dead one before it.
    assert found.states <= (1 if workers == 1 else workers + deaths)


@pytest.mark.full
def test_a_worker_that_wakes_after_its_work_was_given_away_saves_nothing(
    model: LanguageModel, lines: Path, tmp_path: Path, whole: MiningState
) -> None:
    shared = share(model, lines, tmp_path / "a", every=1e9)
    frozen = shared.worker("frozen")
    for _ in range(7):
        frozen.step()
    assert StateFolder(shared.directory, "frozen").close()  # somebody waited long enough
    shared.finish(shared.worker("other"))
    with pytest.raises(WorkerClosed, match="frozen was silent for too long"):
        shared.finish(frozen)
    assert shared.closed() == ["other"]
    assert_equal_states(shared.state(), whole)
    assert sum(lease.lost for lease in shared.leases().read()) == 4  # three counted and not saved, one half-way


@pytest.mark.full
def test_half_a_lease_that_was_saved_is_not_counted_again(shared: Shared, whole: MiningState) -> None:
    directory = shared.directory
    stored = json.loads((directory / "unfinished.json").read_text())
    stored["work"]["lease_batches"] = shared.run.lease_batches = 10
    (directory / "unfinished.json").write_text(json.dumps(stored))
    first = shared.worker("first")
    for _ in range(4):
        first.step()
    first.work.end()  # asked to stop in the middle of a lease
    assert sum(end - begin for begin, end in counted_anywhere(directory)) == 4
    shared.finish(shared.worker("second"))
    assert shared.closed() == ["second"]  # which took over the first one's state
    assert shared.state().finished == [(0, shared.run.batches)]
    assert_equal_states(shared.state(), whole)


@pytest.mark.full
def test_a_run_of_one_process_is_taken_over(
    model: LanguageModel, lines: Path, tmp_path: Path, whole: MiningState
) -> None:
    directory, seen = tmp_path / "a", []

    def stop(stage: str, done: float, *_: Any) -> None:
        seen.append(stage)
        if seen.count("mining") == 40:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_mining(model, lines, directory, OPTIONS, progress=stop)
    shared = share(model, lines, directory)
    assert 30 < sum(end - first for first, end in counted_anywhere(directory)) <= 40
    found = shared.fleet(3, 1)
    assert found.state.finished == [(0, shared.run.batches)]
    assert_equal_states(found.state, whole)


def test_a_full_disk_ends_a_worker_and_loses_nothing_else(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = shared.worker("full")
    worker.step()
    worker.step()
    folder = StateFolder(shared.directory, "full")
    before = folder.state.read_bytes()

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(states.os, "fsync", refuse)
    with pytest.raises(StoreFailed, match="No space left on device"):
        shared.finish(worker)
    assert folder.state.read_bytes() == before
    assert [path.name for path in folder.path.iterdir()] == ["state.safetensors"]


def test_another_text_is_refused_by_name(shared: Shared, tmp_path: Path) -> None:
    shared.lines.write_text(shared.lines.read_text() + "one more line\n")
    share(shared.model, shared.lines, tmp_path / "b")
    shutil.rmtree(shared.directory / "work/text")
    shutil.copytree(tmp_path / "b" / "work" / "text", shared.directory / "work/text")
    with pytest.raises(PartsDiffer, match="is not that of the plan"):
        shared.run.open_text()


@pytest.mark.parametrize(
    ("batches", "tokens", "parameters", "device", "expected"),
    [
        (10, 1_000, 10**6, "cpu", 1),  # few batches: one each
        (100_000, 10**9, 8 * 10**9, "cuda", 75),  # about a minute of a card
        (1_000_000, 10**7, 10**5, "cpu", 3_906),  # never fewer than 256 leases
        (10_000_000, 10**11, 70 * 10**9, "cuda", 1_000),  # never more than 10,000
    ],
)
def test_a_lease_is_about_a_minute(batches: int, tokens: int, parameters: int, device: str, expected: int) -> None:
    assert choose_lease(batches, tokens=tokens, parameters=parameters, device=device, threads=1) == expected
    assert np.ceil(batches / expected) <= 10_000


def test_done_leases_stay_done(shared: Shared) -> None:
    worker = shared.worker("w")
    for _ in range(9):
        worker.step()
    done = [lease for lease in shared.leases().read() if lease.owner == DONE]
    assert len(done) == 4  # one step counts the batch of a lease, the next one ends it
    again = share(shared.model, shared.lines, shared.directory)
    assert again.run.leases == shared.run.leases
    assert [lease for lease in shared.leases().read() if lease.owner == DONE] == done
    assert (shared.directory / STATES / "w").is_dir()


@pytest.mark.full
def test_a_clock_that_is_wrong_changes_nothing(shared: Shared, whole: MiningState) -> None:
    workers = [shared.worker(f"w-{number}") for number in range(3)]
    while workers:
        for number, worker in enumerate(list(workers)):
            path = beat_path(shared.directory, worker.worker.name)
            os.utime(path, (10.0**9 * number, 10.0**9 * number))  # 1970, 2001, 2033
            if not worker.step():
                worker.work.end()
                workers.remove(worker)
    assert sum(lease.lost for lease in shared.leases().read()) == 0
    assert_equal_states(shared.state(), whole)
