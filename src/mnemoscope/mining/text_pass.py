"""A worker's part of the pass over the text: takes leases and counts their batches in one state, saved now and then.

What is in the saved state is done; the rest is lost with the worker and taken by others. A worker without a free lease
takes those of dead workers. The batches of all parts are numbered one part after the other, so that their states fit
together.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from mnemoscope.foundation.progress import Checkpoints
from mnemoscope.kernels.devices import join_names
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.batch_reader import BatchReader
from mnemoscope.mining.text.random_firings import choose_share
from mnemoscope.mining.text.ranges import Range, count_numbers, join_ranges, leave_out, numbers_of
from mnemoscope.mining.text.state import MiningState, StateFacts, StateShape
from mnemoscope.runs.run import Run
from mnemoscope.runs.states import CHECKPOINT, CLOSED, STATES, StateFolder, check_devices, closed_folders, folders_in
from mnemoscope.runs.texts import special_tokens
from mnemoscope.runs.workers.leases import DONE, FREE, TEXT, Lease, LeaseFolder, published_stage
from mnemoscope.runs.workers.worker import Worker

_LOOKS, _POLL = 20, 0.1
"""Looks at the states of late workers, and seconds between them."""


class TextWork:
    """One worker's pass over the text of a stage, with `random_alone` for the random firings only."""

    def __init__(self, worker: Worker, stage: str = TEXT, *, random_alone: bool = False) -> None:
        self._worker, self._run, self._stage = worker, worker.run, stage
        run, plan, model = worker.run, worker.plan, worker.model
        self.state = _empty_state(worker, plan.layers, random_alone=random_alone, devices=model.devices)
        self._leases = LeaseFolder(run.directory, stage, run.leases)
        self._leases.make()
        self._leases.free_those_of(worker.name)
        self._folder = StateFolder(run.directory, worker.name)
        if self._folder.path.is_dir():  # of an earlier process of this name
            self._folder.close()
        for other in folders_in(run.directory / STATES):
            self._is_over_for(other.name)
        # When all is done states are being merged, and must not be taken over.
        if not self._leases.are_done() and self._folder.adopt(self._fits):
            self.state.load(self._folder.state, plan=plan.hash())
        else:
            self._folder.make()
        self.state.device = join_names(self.state.device, worker.device)
        self._loader = BatchLoader(worker.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed, planned=True)
        never = special_tokens(model) if plan.skip_special else ()
        one_in = choose_share(self._loader.positions) if self.state.random else 1
        self._reader = BatchReader(model, self.state, everywhere=plan.per_sentence == "all", never=never, one_in=one_in)
        self._batches = count_numbers(self.state.finished)
        self._others = count_numbers(_counted_in(closed_folders(run.directory)))
        """Batches counted in closed states."""
        self._fresh, self._seconds = 0, 0.0
        """Tokens counted by this worker itself, and the time spent."""
        self._unsaved: list[Lease] = []
        """Leases with all batches counted, but not all saved."""
        self._current: Lease | None = None
        self._numbers: Iterator[int] = iter(())
        """The remaining batches of the current lease."""
        self._is_changed = False

    def run(self) -> None:
        """Works until every lease is done, or it is asked to stop; ends with everything saved. A process that works
        alone saves after a signal, too, and raises Interrupted.
        """
        checkpoints = Checkpoints(self.save, every=self._run.checkpoint_every)
        try:
            with checkpoints if self._worker.is_alone else nullcontext():
                while not self._worker.stop() and self.step():
                    checkpoints.step_done()
            self.end()
        finally:
            self._folder.close()  # after an error, too, what was saved is others'

    def step(self) -> bool:
        """Takes a lease, counts one batch, or looks after the others; False if nothing is left."""
        if self._current is None:
            lease = self._worker.next_lease(self._leases, self._leases.read(), self._is_over_for)
            if lease is None:
                self.save()
                on = published_stage(self._run.directory)
                if on is None or on[0] != self._stage or self._leases.are_done():
                    return False
                self._worker.wait()
                return True
            # What another worker has counted of it is in a saved state, or lost.
            known = [*counted_anywhere(self._run.directory), *self.state.finished]
            self._current, self._numbers = lease, numbers_of(leave_out(self._run.lease_range(lease.number), known))
        number = next(self._numbers, None)
        if number is None:
            self._unsaved.append(self._current)
            self._current = None
        else:
            self.count(number)
        return True

    def count(self, number: int) -> None:
        """Counts one batch of the run."""
        began, run, (part, of) = time.monotonic(), self._run, self._run.part or (1, 1)
        planned = range(part - 1, self._loader.count, of)[number - run.first_batch]
        batch = self._loader(planned)
        if not self._reader.read(batch):
            self.state.halved.append(planned)
        self._is_changed = True
        self.state.finished.append((number, number + 1))
        self._seconds += time.monotonic() - began
        self._fresh += batch.tokens
        self._batches += 1
        self._worker.said |= {"batches": self._batches, "rate": self._fresh / self._seconds}
        done = run.tokens * (self._others + self._batches) / run.batches
        self._worker.progress(self._stage, done, run.tokens, "tokens")

    def save(self) -> None:
        """Saves the state, if it has changed, and marks its leases done."""
        if self._is_changed:
            self._reader.check()
            self._folder.save(self.state.serialise(plan=self._worker.plan.hash()), self._worker.record)
            self._is_changed = False
        for lease in self._unsaved:
            self._leases.rename(lease, DONE)
        self._unsaved = []

    def end(self) -> None:
        """Saves, gives back unfinished leases, and leaves the state to others."""
        self.save()
        if self._current is not None:
            self._leases.rename(self._current, FREE)
        self._folder.close()

    def _fits(self, state: Path) -> bool:
        """Whether this worker may go on with a closed state: of a device of the same name, unless it is alone."""
        device, own = StateFacts.read(state).device, self._worker.device
        check_devices([device, own], mixed=self._worker.is_alone or self._run.mixed_devices)
        return device == own or self._worker.is_alone

    def _is_over_for(self, worker: str) -> bool:
        """Whether a worker saves no more: its state is closed, or it is dead, and its state is closed now."""
        folder = StateFolder(self._run.directory, worker)
        if folder.path.is_dir() and self._worker.watch.is_silent(worker):
            folder.close()
        return not folder.path.is_dir()


def layer_state(worker: Worker, layer: int, *, random_alone: bool = False) -> MiningState:
    """One layer of all states together; several have been merged, but for those of random firings alone."""
    states = worker.run.states
    merged = len(states) > 1 and not random_alone
    return _add_up(worker, [layer], [_merged_path(worker, layer)] if merged else states, random_alone=random_alone)


def merge_layer(worker: Worker, layer: int) -> None:
    """Merges one layer of several states into a file."""
    states = worker.run.states
    if len(states) > 1:
        whole = _add_up(worker, [layer], states)
        worker.save(_merged_path(worker, layer).name, whole.serialise(plan=worker.plan.hash()))


def merge_states(worker: Worker) -> MiningState:
    """All layers of all states."""
    return _add_up(worker, worker.plan.layers, worker.run.states)


def _add_up(
    worker: Worker, layers: Sequence[int], states: Sequence[Path], *, random_alone: bool = False
) -> MiningState:
    whole = _empty_state(worker, layers, random_alone=random_alone)
    for path in states:
        whole.absorb(path, plan=worker.plan.hash())
    return whole


def _empty_state(
    worker: Worker, layers: Sequence[int], *, random_alone: bool = False, devices: Any = None
) -> MiningState:
    plan = worker.plan
    seed = plan.seed if random_alone else plan.random_seed
    shape = StateShape.of(worker.model, keep=plan.triggers, layers=layers, random=seed, alone=random_alone)
    return MiningState(shape, devices=devices)


def _merged_path(worker: Worker, layer: int) -> Path:
    return worker.run.work / f"merged-{layer:03d}.safetensors"


def collect_states(run: Run, stage: str = TEXT) -> bool:
    """Notes the states that together count every batch once; False if batches are missing, whose leases are then free.
    Looks several times where several work: a late worker may hold a state that it adopted, until it sees that the text
    is done.
    """
    found: list[Path] | None = None
    for look in range(_LOOKS if run.fleet else 1):
        time.sleep(_POLL if look else 0)
        for folder in folders_in(run.directory / STATES):
            StateFolder(run.directory, folder.name).close()
        before, found = found, _check_states(run)
        if found is not None and (found == before or not run.fleet):
            paths = [path.relative_to(run.directory).as_posix() for path in found]
            run.record.add(stage, 0, [run.note("states", {"paths": paths}), *found])
            return True
    counted, leases = _counted_in(closed_folders(run.directory)), LeaseFolder(run.directory, stage, run.leases)
    for lease in leases.read():
        if leave_out(run.lease_range(lease.number), counted):
            leases.rename(lease, FREE, lost=1)
    return False


def _check_states(run: Run) -> list[Path] | None:
    """The states that together count every batch once; None if batches are missing. A state that overlaps with another
    is dropped: its worker saved after it was closed, on a file system that shows changes late.
    """
    states: list[Path] = []
    found: list[Range] = []
    names: set[str] = set()
    for folder in closed_folders(run.directory):
        facts = StateFacts.read(folder / CHECKPOINT)
        both = join_ranges([*found, *facts.finished])
        if not facts.finished or count_numbers(both) < count_numbers(found) + count_numbers(facts.finished):
            (folder / CHECKPOINT).unlink()
            continue
        found = both
        states.append(folder / CHECKPOINT)
        names.add(facts.device)
    check_devices(names, mixed=run.mixed_devices)
    return states if found == join_ranges([(run.first_batch, run.first_batch + run.batches)]) else None


def counted_anywhere(directory: Path) -> list[Range]:
    """The batches in any saved state at the moment."""
    for _ in range(_LOOKS):
        with suppress(FileNotFoundError):  # renamed meanwhile, and found under its other name
            before = folders_in(directory / CLOSED)
            every = [*before, *folders_in(directory / STATES)]
            found = _counted_in([path for path in every if (path / CHECKPOINT).is_file() or not path.is_dir()])
            if folders_in(directory / CLOSED) == before:
                return join_ranges(found)
    return join_ranges(_counted_in(closed_folders(directory)))


def _counted_in(folders: Iterable[Path]) -> list[Range]:
    return [run for folder in folders for run in StateFacts.read(folder / CHECKPOINT).finished]
