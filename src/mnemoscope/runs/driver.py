"""The driver of a run: publishes stages, has them done, and says how far they are.

The process of one worker drives itself. For several the driver starts workers, replaces those that die, and holds the
folder's lock, but neither model nor text. If it is killed nothing is lost: the next driver finds in the folder what is
done. Neither the launcher nor the number of workers changes a byte.
"""

import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Protocol

from mnemoscope.errors import MiningError
from mnemoscope.foundation.processes import usable_cores
from mnemoscope.foundation.progress import WORKER, fleet_note, worker_note
from mnemoscope.runs.launch.local import LocalLauncher
from mnemoscope.runs.run import Run
from mnemoscope.runs.workers.heartbeats import DRIVER, Heartbeat, Watch
from mnemoscope.runs.workers.leases import DONE, FINISHED, FREE, Lease, LeaseFolder, publish
from mnemoscope.runs.workers.status import counted_batches
from mnemoscope.runs.workers.worker import Stage, Worker, new_name

POLL = 0.1
"""Seconds between two looks at the workers."""
COLLECTING = "collecting"
"""The stage between the text and what follows, in which workers wait."""
MEMORIES_EACH = 2_000
"""Memories of a process that helps with stages without a model: about ten seconds of patterns, for one of starting."""
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
    """Drives a run with the `worker` of this process, or with so many `workers` of a launcher."""

    def __init__(
        self, run: Run, *, worker: Worker | None = None, launcher: Launcher | None = None, workers: int = 0
    ) -> None:
        self._run, self._directory = run, run.directory
        self._worker, self._launcher, self._wanted = worker, launcher, workers
        self._helpers: LocalLauncher | None = None
        self._workers: set[str] = set()
        self._watch = Watch(self._directory, patience=run.patience)
        self._deaths, self._done = 0, -1
        self._last = ""
        self._counted = 0
        self.lost = 0
        """Leases that were taken again."""

    def drive(self, stages: Iterable[Stage]) -> None:
        """Starts the workers, has all units of the stages done that are not recorded as done, and stops the workers."""
        driver = Heartbeat(self._directory, DRIVER, dict, patience=self._run.patience)
        with driver, self._worker.beating() if self._worker else nullcontext():
            try:
                for _ in range(self._wanted):
                    self._start()
                for stage in stages:
                    self.do(stage)
                    self._run.end_stage(stage.name)
                publish(self._directory, FINISHED)
            finally:
                for launcher in filter(None, (self._launcher, self._helpers)):
                    launcher.stop()

    def _start(self) -> None:
        assert self._launcher is not None
        name = new_name()
        self._launcher.start(name)
        self._workers.add(name)
        self._run.progress(WORKER, 0, None, worker_note(name, "started"))

    def _start_helpers(self) -> None:
        """Starts a process for every other core, unless there are too few memories; none where none can be started."""
        sizes, layers = self._run.facts["sizes"]["memories"], self._run.plan.layers
        wanted = min(len(usable_cores()), len(layers), sum(sizes[layer] for layer in layers) // MEMORIES_EACH)
        self._helpers = LocalLauncher(self._directory, threads=1, words=["--without-model"])
        with suppress(OSError):
            for _ in range(wanted - 1):
                self._helpers.start(new_name("helper"))

    def do(self, stage: Stage) -> None:
        """Has the units of a stage done."""
        run, turn = self._run, 0
        units = range(len(run.plan.layers) if stage.unit == "layer" else 1)
        if all((stage.joined or stage.name, unit) in run.record.units for unit in units):
            return
        if self._worker and not stage.needs_model and self._helpers is None:
            self._start_helpers()
        lacking = True
        while lacking:
            publish(self._directory, stage.name, turn=turn)
            if self._worker:
                self._worker.take(stage)
            leases = self._wait(stage)
            run.record.read()
            if stage.collect is not None:
                publish(self._directory, COLLECTING, turn=turn)
                lacking = not stage.collect(run)
            else:  # done by an earlier run, and damaged since
                again = [lease for lease in leases.read() if (stage.name, lease.number) not in run.record.units]
                for lease in again:
                    leases.rename(lease, FREE, lost=1)
                lacking = bool(again)
            turn += 1

    def _wait(self, stage: Stage) -> LeaseFolder:
        """Waits until all leases are done; the first worker that has counted them makes them."""
        while True:
            leases = LeaseFolder.find(self._directory, stage.name)
            found = leases.read() if leases else []
            if self._launcher:
                self._tell(stage, found)
            if leases and all(lease.owner == DONE for lease in found):
                return leases
            if self._launcher:
                self._look_after(found)
            time.sleep(POLL)

    def _look_after(self, leases: list[Lease]) -> None:
        """Starts a worker for each that ended."""
        assert self._launcher is not None
        done = sum(lease.owner == DONE for lease in leases)
        if done != self._done:
            self._deaths, self._done = 0, done
        for name, why in self._launcher.take_ended().items():
            self._workers.discard(name)
            self._last = why or self._last
            self._run.progress(WORKER, 0, None, worker_note(name, "lost" if why else "ended", why or ""))
            self._deaths += 1
            if self._deaths <= _MOST_DEATHS:
                self._start()
        if not self._workers:
            raise MiningError(f"no worker is left: {self._last or 'all of them ended; run the same command again'}")

    def _tell(self, stage: Stage, leases: list[Lease]) -> None:
        self.lost = max(self.lost, sum(lease.lost for lease in leases))
        done: float = sum(lease.owner == DONE for lease in leases)
        total, unit = len(leases), "tasks"
        if stage.unit == "text":
            beats = map(self._watch.last_beat, self._workers)
            self._counted = max(self._counted, counted_batches(leases, self._run.lease_batches, beats))
            total, unit = self._run.tokens, "tokens"
            done = int(total * min(1.0, self._counted / max(1, self._run.batches)))
        note = fleet_note(unit, workers=len(self._workers), leases_lost=self.lost)
        self._run.progress(stage.name, done, total, note)
