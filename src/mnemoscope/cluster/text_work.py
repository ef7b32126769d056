"""A worker's part of the pass over the text: takes leases and counts their batches in one state, saved now and then.

What is in the saved state is done; the rest is lost with the worker and taken by others. A worker without a free lease
takes those of dead workers, and closes one that is far too slow.
"""

import random
import time
from collections.abc import Iterator

from mnemoscope.cluster.coordination.leases import AGAIN, DONE, Lease, LeaseFolder
from mnemoscope.cluster.stages import TEXT, PublishedStage
from mnemoscope.cluster.state_folders import STATES, StateFolder, counted_anywhere, folders_in
from mnemoscope.cluster.worker_context import WorkerContext
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.steps import RunContext
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.ranges import Range, count_numbers, leave_out, numbers_of
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.mining.text_pass import TextReader

_SLOW = 0.5
"""A slow worker is closed if redoing its lease takes less than this share of its remaining time."""


class TextWork:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        plan, model = context.plan, context.model
        self._folder = StateFolder(context.directory, context.name)
        self._record = RunRecord(context.directory, plan.hash(), name=context.name)
        self._leases = LeaseFolder(context.directory, TEXT, context.run.leases)
        shape = StateShape.of(model, keep=plan.triggers, layers=plan.layers, random=plan.random_seed)
        self._state = MiningState(shape, devices=model.devices)
        for other in folders_in(context.directory / STATES):
            if context.watch.is_silent(other.name):
                StateFolder(context.directory, other.name).close(context.directory)
        # When all is done states are being merged, and must not be taken over.
        if not self._all_done() and self._folder.adopt(context.directory, context.device):
            self._state.load(self._folder.state, plan=plan.hash())
        else:
            self._folder.make()
        self._state.device = context.device
        loader = BatchLoader(context.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed, planned=True)
        self._reader = TextReader(RunContext(context.directory), model, loader, plan, self._state)
        self._tokens = loader.tokens(numbers_of(self._state.finished))
        self._batches = count_numbers(self._state.finished)
        self._fresh, self._fresh_tokens, self._seconds = 0, 0, 0.0
        """Batches and tokens counted by this worker itself, and the time spent."""
        self._free: list[Lease] = []
        self._unsaved: list[Lease] = []
        """Leases with all batches counted, but not all saved."""
        self._current: Lease | None = None
        self._numbers: Iterator[int] = iter(())
        """The remaining batches of the current lease."""
        self._saved, self._is_changed = time.monotonic(), False
        self._paces: dict[str, tuple[float, int]] = {}
        """Since when another worker is waited for, and its batches counted then."""

    def run(self) -> None:
        """Works until every lease is done, or it is asked to stop; ends with everything saved."""
        while not self._context.stop() and self.step():
            pass
        self.end()

    def step(self) -> bool:
        """Takes a lease, counts one batch, or looks after the others; False if nothing is left."""
        if self._current is None:
            lease, again = self._next()
            if lease is None:
                if self._is_over():
                    return False
                self._context.wait()
                return True
            self._current, self._numbers = lease, numbers_of(self._left_of(lease, again=again))
        number = next(self._numbers, None)
        if number is None:
            self._unsaved.append(self._current)
            self._current = None
        else:
            self._count(number)
        if time.monotonic() - self._saved >= self._context.run.checkpoint_every:
            self._save()
        return True

    def end(self) -> None:
        """Saves, gives back unfinished leases, and leaves the state to others."""
        self._save()
        if self._current is not None:
            self._leases.give_back(self._current)
        self._folder.close(self._context.directory)

    def _is_over(self) -> bool:
        """Whether nothing is left for any worker; saves first."""
        if self._unsaved:
            self._save()
        stage = PublishedStage.read(self._context.directory)
        return stage is None or stage.name != TEXT or self._all_done()

    def _all_done(self) -> bool:
        return all(lease.owner == DONE for lease in self._leases.read())

    def _next(self) -> tuple[Lease | None, bool]:
        """A lease, and whether another worker may have counted some of it."""
        for _ in range(2):
            while self._free:
                lease = self._free.pop()
                if taken := self._leases.take(lease, self._context.name):
                    return taken, lease.owner == AGAIN
            everything = self._leases.read()
            self._free = [lease for lease in everything if lease.is_free]
            # Workers begin at random places, so that few try for the same lease.
            middle = random.randrange(len(self._free) + 1)
            self._free = self._free[middle:] + self._free[:middle]
        return self._take_over([lease for lease in everything if lease.owner != DONE]), True

    def _take_over(self, others: list[Lease]) -> Lease | None:
        """A lease of a worker that is dead or far too slow; None if all must be waited for."""
        directory = self._context.directory
        for lease in others:
            if lease.is_free or lease.owner == self._context.name:
                continue
            closed = not (directory / STATES / lease.owner).is_dir()
            if not closed and (self._context.watch.is_silent(lease.owner) or self._is_too_slow(lease)):
                StateFolder(directory, lease.owner).close(directory)
                closed = True
            if closed and (taken := self._leases.take(lease, self._context.name)):
                return taken
        return None

    def _is_too_slow(self, lease: Lease) -> bool:
        if not self._fresh:
            return False
        now, said = time.monotonic(), self._context.watch.last_beat(lease.owner)
        since, before = self._paces.setdefault(lease.owner, (now, int(said.get("batches", 0))))
        waited, counted = now - since, int(said.get("batches", 0)) - before
        first, end = self._context.run.lease_range(lease.number)
        if waited < self._context.run.patience / 2:
            return False
        left = (end - first) * waited / counted if counted else float("inf")
        again = (end - first) * self._seconds / self._fresh
        return left > self._context.run.patience and again < _SLOW * left

    def _left_of(self, lease: Lease, *, again: bool) -> list[Range]:
        """The batches of a lease that no saved state counts; only a lease taken `again` may have some."""
        known = [*counted_anywhere(self._context.directory), *self._state.finished] if again else []
        return leave_out(self._context.run.lease_range(lease.number), known)

    def _count(self, number: int) -> None:
        began = time.monotonic()
        tokens = self._reader.take(number)
        self._is_changed = True
        self._state.finished.append((number, number + 1))
        self._seconds += time.monotonic() - began
        self._fresh, self._fresh_tokens = self._fresh + 1, self._fresh_tokens + tokens
        self._tokens, self._batches = self._tokens + tokens, self._batches + 1
        self._context.tell(batches=self._batches, tokens=self._tokens, rate=self._fresh_tokens / self._seconds)

    def _save(self) -> None:
        """Saves the state, if it has changed, and marks its leases done."""
        if self._is_changed:
            self._folder.save(self._reader.serialise(), self._record)
            self._is_changed = False
        for lease in self._unsaved:
            self._leases.end(lease)
        self._unsaved, self._saved = [], time.monotonic()
