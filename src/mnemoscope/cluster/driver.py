"""The driver of a run: starts workers, publishes stages, shows progress, and replaces workers that die.

It holds the folder's lock, and neither model nor text. If it is killed nothing is lost: the next driver finds in the
folder what is done. Neither the launcher nor the number of workers changes a byte.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from mnemoscope.cluster.coordination.heartbeats import DRIVER, Heartbeat, Watch
from mnemoscope.cluster.coordination.leases import DONE, Lease, LeaseFolder
from mnemoscope.cluster.settling import SettledRun
from mnemoscope.cluster.stages import FINISHED, TEXT, PublishedStage
from mnemoscope.cluster.state_folders import (
    CLOSED,
    STATES,
    StateFolder,
    closed_folders,
    counted_in_closed,
    folders_in,
)
from mnemoscope.cluster.worker import is_of, new_name
from mnemoscope.errors import MiningError, PartsDiffer
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.foundation.progress import WORKER, fleet_note, worker_note
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.ranges import Range, count_numbers, join_ranges, leave_out
from mnemoscope.mining.text.state import StateFacts

POLL = 0.1
"""Seconds between two looks at the workers."""
_STATES_TO_MERGE = "states.json"
_COLLECTING = "collecting"
"""The stage between the text and the first merge, in which workers wait."""
_LOOKS = 20
_MOST_DEATHS = 3
"""Workers replaced in a row without a lease being done in between."""


class Launcher(Protocol):
    """Starts workers somewhere, and reports those that ended."""

    def start(self, name: str) -> None: ...

    def take_ended(self) -> dict[str, str | None]:
        """Workers that ended since the last call, by name, with the reason in one line; None: they were done."""
        ...

    def stop(self) -> None:
        """Asks all workers to save and end, waits, and kills those that do not."""


class Driver:
    def __init__(self, context: RunContext, settled: SettledRun, launcher: Launcher, *, workers: int) -> None:
        self._context, self._directory = context, context.directory
        self._plan, self._run = settled.plan, settled.run
        self._launcher, self._wanted = launcher, workers
        self._record = RunRecord(self._directory, self._plan.hash())
        """What earlier runs have done."""
        self._workers: set[str] = set()
        self._watch = Watch(self._directory, patience=self._run.patience)
        self._deaths, self._done = 0, -1
        self._last = ""
        self._closed: dict[str, int] = {}
        self.lost = 0
        """Leases that were taken again."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Starts the workers, and stops them after the block."""
        with Heartbeat(self._directory, DRIVER, lambda: {}, patience=self._run.patience):
            try:
                for _ in range(self._wanted):
                    self._start()
                yield
                PublishedStage(FINISHED).publish(self._directory)
            finally:
                self._launcher.stop()

    def _start(self) -> None:
        name = new_name()
        self._launcher.start(name)
        self._workers.add(name)
        self._context.progress(WORKER, 0, None, worker_note(name, "started"))

    def read_text(self) -> tuple[str, ...]:
        """Has the text read; returns the files of all workers' states, relative to the atlas."""
        noted = self._context.work / _STATES_TO_MERGE
        # Noted when the text was done, after which no state changes.
        states: list[str] | None = read_object(noted).get("states")
        if states is None or not all((self._directory / state).is_file() for state in states):
            states = None
            leases = LeaseFolder(self._directory, TEXT, self._run.leases)
            leases.make()
            while states is None:
                self._run_stage(PublishedStage(TEXT))
                states = self._collect(leases)
            write_json(noted, {"states": states})
        self._context.end_stage(TEXT)
        return tuple(states)

    def run_stage(self, name: str, states: Sequence[str], *, needless: str = "") -> None:
        """Has the units of a stage done that are not recorded as done; none if the stage `needless` is."""
        if (needless, 0) not in self._record.units:
            leases = LeaseFolder.find(self._directory, name)
            for lease in leases.read() if leases else ():  # of an earlier run: some may have been damaged since
                if leases and lease.owner == DONE and (name, lease.number) not in self._record.units:
                    leases.open_again(lease)
            self._run_stage(PublishedStage(name, tuple(states)))
        self._context.end_stage(name)

    def _run_stage(self, stage: PublishedStage) -> None:
        stage.publish(self._directory)
        while True:
            leases = LeaseFolder.find(self._directory, stage.name)  # made by the first worker that has counted them
            found = leases.read() if leases else []
            self._tell(stage, found)
            if leases and all(lease.owner == DONE for lease in found):
                return
            self._look_after(found)
            time.sleep(POLL)

    def _look_after(self, leases: list[Lease]) -> None:
        """Closes the states of workers that ended, and starts others."""
        done = sum(lease.owner == DONE for lease in leases)
        if done != self._done:
            self._deaths, self._done = 0, done
        for name, why in self._launcher.take_ended().items():
            self._workers.discard(name)
            self._last = why or self._last
            self._context.progress(WORKER, 0, None, worker_note(name, "lost" if why else "ended", why or ""))
            for folder in folders_in(self._directory / STATES):
                if is_of(folder.name, name):
                    StateFolder(self._directory, folder.name).close(self._directory)
            self._deaths += 1
            if self._deaths <= _MOST_DEATHS:
                self._start()
        if not self._workers:
            raise MiningError(f"no worker is left: {self._last or 'all of them ended; run the same command again'}")

    def _count_batches(self) -> int:
        """The batches that all workers together have counted, saved or not."""
        names = {folder.name for folder in folders_in(self._directory / STATES)}
        alive = sum(int(self._watch.last_beat(name).get("batches", 0)) for name in names)
        for folder in closed_folders(self._directory):
            if folder.name not in self._closed:
                self._closed[folder.name] = count_numbers(StateFacts.read(folder / CHECKPOINT).finished)
            alive += self._closed[folder.name]
        return alive

    def _tell(self, stage: PublishedStage, leases: list[Lease]) -> None:
        self.lost = max(self.lost, sum(lease.lost for lease in leases))
        if stage.name == TEXT:
            total, unit = self._run.tokens, "tokens"
            done = int(total * min(1.0, self._count_batches() / max(1, self._run.batches)))
        else:
            total, unit, done = len(leases), "tasks", sum(lease.owner == DONE for lease in leases)
        note = fleet_note(unit, workers=len(self._workers), leases_lost=self.lost)
        self._context.progress(stage.name, done, total, note)

    def _collect(self, leases: LeaseFolder) -> list[str] | None:
        """The states to merge, relative to the atlas; None if batches are missing, whose leases are then free. Looks
        several times: a late worker may hold a state that it adopted, until it sees that the text is done.
        """
        PublishedStage(_COLLECTING).publish(self._directory)
        found: list[str] | None = None
        for _ in range(_LOOKS):
            for folder in folders_in(self._directory / STATES):
                StateFolder(self._directory, folder.name).close(self._directory)
            before, found = found, self._check_states()
            if found is not None and found == before:
                return found
            time.sleep(POLL)
        counted = counted_in_closed(self._directory)
        for lease in leases.read():
            if leave_out(self._run.lease_range(lease.number), counted):
                leases.open_again(lease)
        return None

    def _check_states(self) -> list[str] | None:
        """The states that together count every batch once, relative to the atlas; None if batches are missing. A state
        that overlaps with another is dropped: its worker saved after it was closed, on a file system that shows changes
        late.
        """
        states: list[str] = []
        found: list[Range] = []
        names: set[str] = set()
        for folder in closed_folders(self._directory):
            facts = StateFacts.read(folder / CHECKPOINT)
            both = join_ranges([*found, *facts.finished])
            if not facts.finished or count_numbers(both) < count_numbers(found) + count_numbers(facts.finished):
                (folder / CHECKPOINT).unlink()
                continue
            found = both
            states.append(f"{CLOSED}/{folder.name}/{CHECKPOINT}")
            names.add(facts.device)
        if len(names) > 1 and not self._run.mixed_devices:
            raise PartsDiffer(
                f"workers computed on {' and '.join(sorted(names))}, and last bits differ between them; go on with"
                " --allow-mixed-devices, or start again on machines of one kind"
            )
        return states if found == [(0, self._run.batches)] else None
