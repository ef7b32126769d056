"""A worker's part of the pass over the text: takes leases and counts their batches in one state, saved now and then.

What is in the saved state is done; the rest is lost with the worker and taken by others. A worker without a free lease
takes those of dead workers. Of a part, batch i of I/N is the i-th of its own:
the batches of all parts are numbered one part after the other, so that their states fit together.
"""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from mnemoscope.errors import PartsDiffer
from mnemoscope.foundation.progress import Checkpoints
from mnemoscope.kernels.devices import join_names
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.batch_reader import BatchReader
from mnemoscope.mining.text.random_firings import choose_share
from mnemoscope.mining.text.ranges import Range, count_numbers, join_ranges, leave_out, numbers_of
from mnemoscope.mining.text.state import MiningState, StateFacts, StateShape
from mnemoscope.models.special_tokens import special_tokens
from mnemoscope.runs.run import Run
from mnemoscope.runs.states import CHECKPOINT, CLOSED, STATES, StateFolder, closed_folders, folders_in
from mnemoscope.runs.workers.leases import AGAIN, DONE, TEXT, Lease, LeaseFolder, published_stage
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
            if worker.watch.is_silent(other.name):
                StateFolder(run.directory, other.name).close()
        # When all is done states are being merged, and must not be taken over.
        if not self._all_done() and self._folder.adopt(self._fits):
            self.state.load(self._folder.state, plan=plan.hash())
        else:
            self._folder.make()
        self.state.device = join_names(self.state.device, worker.device)
        self._loader = BatchLoader(worker.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed, planned=True)
        never = special_tokens(model) if plan.skip_special else ()
        one_in = choose_share(self._loader.positions) if self.state.random else 1
        self._reader = BatchReader(model, self.state, everywhere=plan.per_sentence == "all", never=never, one_in=one_in)
        self._counted = self._tokens_in(self.state.finished)
        self._batches = count_numbers(self.state.finished)
        self._others = self._tokens_in(_counted_in(closed_folders(run.directory)))
        """Tokens counted in closed states."""
        self._fresh, self._seconds = 0, 0.0
        """Tokens counted by this worker itself, and the time spent."""
        self._free: list[Lease] = []
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
        with checkpoints if self._worker.is_alone else nullcontext():
            while not self._worker.stop() and self.step():
                checkpoints.step_done()
        self.end()

    def step(self) -> bool:
        """Takes a lease, counts one batch, or looks after the others; False if nothing is left."""
        if self._current is None:
            lease, again = self._next()
            if lease is None:
                if self._is_over():
                    return False
                self._worker.wait()
                return True
            self._current, self._numbers = lease, numbers_of(self._left_of(lease, again=again))
        number = next(self._numbers, None)
        if number is None:
            self._unsaved.append(self._current)
            self._current = None
        else:
            self.count(number)
        return True

    def count(self, number: int) -> None:
        """Counts one batch of the run."""
        began = time.monotonic()
        batch = self._loader(self._plan_number(number))
        if not self._reader.read(batch):
            self.state.halved.append(self._plan_number(number))
        self._is_changed = True
        self.state.finished.append((number, number + 1))
        self._seconds += time.monotonic() - began
        self._fresh, self._counted, self._batches = (
            self._fresh + batch.tokens,
            self._counted + batch.tokens,
            self._batches + 1,
        )
        self._worker.tell(batches=self._batches, tokens=self._counted, rate=self._fresh / self._seconds)
        self._worker.progress(self._stage, self._others + self._counted, self._run.tokens, "tokens")

    def save(self) -> None:
        """Saves the state, if it has changed, and marks its leases done."""
        if self._is_changed:
            self._reader.check()
            self._folder.save(self.state.serialise(plan=self._worker.plan.hash()), self._worker.record)
            self._is_changed = False
        for lease in self._unsaved:
            self._leases.end(lease)
        self._unsaved = []

    def end(self) -> None:
        """Saves, gives back unfinished leases, and leaves the state to others."""
        self.save()
        if self._current is not None:
            self._leases.give_back(self._current)
        self._folder.close()

    def _fits(self, state: Path) -> bool:
        """Whether this worker may go on with a closed state: of a device of the same name, unless it is alone."""
        device = StateFacts.read(state).device
        if device == self._worker.device or self._worker.is_alone:
            return True
        if not self._run.mixed_devices:
            raise _mixed_devices([device, self._worker.device])
        return False

    def _plan_number(self, number: int) -> int:
        """The number of a batch in the plan's order."""
        part, of = self._run.part or (1, 1)
        return range(part - 1, self._loader.count, of)[number - self._run.first_batch]

    def _tokens_in(self, ranges: Iterable[Range]) -> int:
        return self._loader.tokens(map(self._plan_number, numbers_of(ranges)))

    def _is_over(self) -> bool:
        """Whether nothing is left for any worker; saves first."""
        if self._unsaved:
            self.save()
        on = published_stage(self._run.directory)
        return on is None or on[0] != self._stage or self._all_done()

    def _all_done(self) -> bool:
        return all(lease.owner == DONE for lease in self._leases.read())

    def _next(self) -> tuple[Lease | None, bool]:
        """A lease, and whether another worker may have counted some of it."""
        for _ in range(2):
            while self._free:
                lease = self._free.pop(0)
                if taken := self._leases.take(lease, self._worker.name):
                    return taken, lease.owner == AGAIN
            everything = self._leases.read()
            self._free = [lease for lease in everything if lease.is_free]
            # Workers begin at random places, so that few try for the same lease.
            middle = 0 if self._worker.is_alone else random.randrange(len(self._free) + 1)
            self._free = self._free[middle:] + self._free[:middle]
        return self._take_over([lease for lease in everything if lease.owner != DONE]), True

    def _take_over(self, others: list[Lease]) -> Lease | None:
        """A lease of a worker that is dead; None if all must be waited for."""
        for lease in others:
            if lease.is_free or lease.owner == self._worker.name:
                continue
            folder = StateFolder(self._run.directory, lease.owner)
            closed = not folder.path.is_dir()
            if not closed and self._worker.watch.is_silent(lease.owner):
                folder.close()
                closed = True
            if closed and (taken := self._leases.take(lease, self._worker.name)):
                return taken
        return None

    def _left_of(self, lease: Lease, *, again: bool) -> list[Range]:
        """The batches of a lease that no saved state counts; only a lease taken `again` may have some."""
        known = [*counted_anywhere(self._run.directory), *self.state.finished] if again else []
        return leave_out(self._run.lease_range(lease.number), known)


def layer_state(worker: Worker, layer: int, *, random_alone: bool = False) -> MiningState:
    """One layer of all states together."""
    states, state = worker.run.states, _empty_state(worker, [layer], random_alone=random_alone)
    path = states[0] if len(states) == 1 else _merged_path(worker, layer)
    if not path.is_file():
        return _absorb_all(worker, state)
    state.load(path, plan=worker.plan.hash())
    return state


def merge_layer(worker: Worker, layer: int) -> None:
    """Merges one layer of all states into a file."""
    if len(worker.run.states) != 1:
        state = _absorb_all(worker, _empty_state(worker, [layer]))
        worker.save(_merged_path(worker, layer).name, state.serialise(plan=worker.plan.hash()))


def merge_states(worker: Worker) -> MiningState:
    """All layers of all states."""
    return _absorb_all(worker, _empty_state(worker, worker.plan.layers))


def _empty_state(
    worker: Worker, layers: Sequence[int], *, random_alone: bool = False, devices: Any = None
) -> MiningState:
    plan = worker.plan
    seed = plan.seed if random_alone else plan.random_seed
    shape = StateShape.of(worker.model, keep=plan.triggers, layers=layers, random=seed, alone=random_alone)
    return MiningState(shape, devices=devices)


def _merged_path(worker: Worker, layer: int) -> Path:
    return worker.run.work / f"merged-{layer:03d}.safetensors"


def _absorb_all(worker: Worker, state: MiningState) -> MiningState:
    for path in worker.run.states:
        state.absorb(path, plan=worker.plan.hash(), mixed=worker.run.mixed_devices)
    return state


def read_text(worker: Worker, _: int) -> None:
    TextWork(worker).run()


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
            leases.open_again(lease)
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
    if len(names) > 1 and not run.mixed_devices:
        raise _mixed_devices(names)
    return states if found == join_ranges([(run.first_batch, run.first_batch + run.batches)]) else None


def _mixed_devices(names: Iterable[str]) -> PartsDiffer:
    return PartsDiffer(
        f"workers computed on {' and '.join(sorted(names))}, and last bits differ between them; go on with"
        " --allow-mixed-devices, or start again on machines of one kind"
    )


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
