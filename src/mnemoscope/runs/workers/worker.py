"""One worker of a run: takes leases of the text, counts them in its own state, and then does units of later stages.

The process of `mine` is a worker itself unless it only drives others. Other workers come and go: all instructions are
in the folder. A worker refuses other libraries, another model, text or device than the plan's when it starts; one
without a model does what needs none.
"""

import random
import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

import polars as pl

from mnemoscope.atlas.experts import counted_through, with_experts, with_names
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.progress import Progress
from mnemoscope.runs.plan import MiningPlan
from mnemoscope.runs.run import Run
from mnemoscope.runs.workers.heartbeats import DRIVER, Heartbeat, Watch
from mnemoscope.runs.workers.leases import DONE, FINISHED, FREE, TEXT, Lease, LeaseFolder, published_stage

if TYPE_CHECKING:
    from mnemoscope.models import LanguageModel

Kept = TypeVar("Kept")
SINGLE_PROCESS = "single-process"
"""The name of the worker that the process of `mine` is itself."""
_SHORTEST, _LONGEST = 0.02, 0.2
"""Seconds between two looks without work, at random, so that workers do not look at the same moment."""


def new_name(word: str = "worker") -> str:
    """A unique name; a worker that restarts is a new one."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', word)[:40].strip('-') or 'worker'}-{uuid4().hex[:8]}"


@dataclass(frozen=True)
class Stage:
    """`make(worker, unit)` does one unit: a layer, the number of a piece, or 0. The units of a stage are independent:
    each writes whole files and changes none of another unit, so they may be done in any order, in any process, and
    twice. Of the `text` every worker counts batches in a state of its own (`make`), and `collect` says whether the
    states count all.
    """

    name: str
    unit: Literal["text", "run", "layer", "piece"]
    make: Callable[["Worker", int], None]
    table: str | None = None
    """The optional table that it helps to make."""
    needs_all: bool = True
    """Whether it needs the triggers of the whole text, which a part lacks."""
    needs_model: bool = True
    mined: Literal["always", "asked", "never"] = "always"
    """Whether mining does it: `asked` where the plan has its table's name as a field, `never` by `extend` only."""
    count_pieces: Callable[["Worker"], int] | None = None
    """By a worker, since a pass plans its pieces with the model."""
    joined: str = ""
    """The stage that joins the pieces, after which they are not needed."""
    collect: Callable[[Run], bool] | None = None

    def count(self, worker: "Worker") -> int:
        """How many units there are."""
        if self.count_pieces is not None:
            return self.count_pieces(worker)
        return len(worker.plan.layers) if self.unit == "layer" else 1


class Worker:
    """A process at work on a run, and what units need of it. `stop` says whether it has been asked to save and end."""

    def __init__(
        self,
        run: Run,
        model: "LanguageModel | None",
        *,
        name: str = SINGLE_PROCESS,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.run, self.name, self.stop = run, name, stop
        self.is_alone = name == SINGLE_PROCESS
        self.record = run.record if self.is_alone else run.record_of(name)
        self.watch = Watch(run.directory, patience=run.patience)
        self.made: list[Path] = []
        """The files that the present unit has written."""
        self._model = model
        self._kept: tuple[Hashable, Any] = (None, None)
        self._shared: dict[Hashable, Any] = {}
        self.said: dict[str, Any] = {"device": self.device, "batches": 0, "rate": 0.0}
        """The content of its heartbeat."""

    @property
    def model(self) -> "LanguageModel":
        assert self._model is not None
        return self._model

    @cached_property
    def device(self) -> str:
        """The name of what the model runs on."""
        if self._model is None:
            return ""
        from mnemoscope.kernels.devices import device_name

        return device_name(self._model.device)

    @cached_property
    def copy(self) -> TokenizedCorpus:
        """The tokenized text."""
        return self.run.copy or self.run.open_text()

    @property
    def plan(self) -> MiningPlan:
        return self.run.plan

    @property
    def directory(self) -> Path:
        return self.run.directory

    @property
    def progress(self) -> Progress:
        return self.run.progress

    def beating(self) -> Heartbeat:
        """The heartbeat, which says what was told."""
        return Heartbeat(self.directory, self.name, lambda: self.said, patience=self.run.patience)

    @staticmethod
    def wait() -> None:
        time.sleep(random.uniform(_SHORTEST, _LONGEST))

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The kept object of this key, made if it is another; one is kept at a time, to free memory."""
        if self._kept[0] != key:
            self._kept = (None, None)
            self._kept = key, make()
        kept: Kept = self._kept[1]
        return kept

    def share(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """An object that units of several stages need, made once."""
        if key not in self._shared:
            self._shared[key] = make()
        shared: Kept = self._shared[key]
        return shared

    def path(self, name: str, layer: int | None = None) -> Path:
        return self.directory / TABLES[name].path(layer)

    def write(self, name: str, columns: Mapping[str, Any], layer: int | None = None) -> None:
        """Writes a table. Memories are counted through their layers."""
        stored, path = with_experts(columns, self.model.numberings, layer), self.path(name, layer)
        write_table(path, stored, name=name, provenance=self.run.provenance)
        self.made.append(path)

    def read(self, name: str, columns: Iterable[str], layer: int) -> pl.DataFrame:
        names, numberings = [*columns], self.model.numberings
        stored = pl.read_parquet(self.path(name, layer), columns=with_names(names) if numberings else names, glob=False)
        return counted_through(stored, numberings, layer)

    def save(self, name: str, data: bytes) -> None:
        """Writes a file into the work folder."""
        write_bytes(self.run.work / name, data)
        self.made.append(self.run.work / name)

    def note(self, stage: str, facts: Mapping[str, Any]) -> None:
        self.made.append(self.run.note(stage, facts))

    def do(self, stage: Stage, number: int) -> None:
        """Does unit `number` (0-based) and records it."""
        self.made.clear()
        stage.make(self, self.plan.layers[number] if stage.unit == "layer" else number)
        self.record.add(stage.name, number, self.made)

    def take(self, stage: Stage) -> None:
        """Does units of a stage until all are done, or another stage has begun: free ones, and those of dead workers,
        since doing one twice does no harm.
        """
        if stage.unit == "text":
            stage.make(self, 0)
            return
        self.record.read()
        leases = LeaseFolder.find(self.directory, stage.name)
        if leases is None:
            leases = LeaseFolder(self.directory, stage.name, stage.count(self))
            leases.make()
        leases.free_those_of(self.name)
        on = published_stage(self.directory)
        while not self.stop() and published_stage(self.directory) == on:
            found = leases.read()
            done = sum(lease.owner == DONE for lease in found)
            if stage.unit == "layer":
                self.progress(stage.name, done, leases.count, "layers")
            if done == leases.count:
                return
            taken = self.next_lease(leases, found, self.watch.is_dead)
            if taken is None:
                self.wait()
                continue
            if (stage.name, taken.number) not in self.record.units:
                self.do(stage, taken.number)
            leases.rename(taken, DONE)

    def next_lease(self, leases: LeaseFolder, found: list[Lease], is_dead: Callable[[str], bool]) -> Lease | None:
        """Takes a free lease of those `found`, or one of a dead worker; None if all must be waited for."""
        free = [lease for lease in found if lease.owner == FREE]
        if not self.is_alone:  # so that few try for the same lease
            random.shuffle(free)
        others = (lease for lease in found if lease.owner not in (FREE, DONE, self.name) and is_dead(lease.owner))
        return next(filter(None, (leases.take(lease, self.name) for lease in chain(free, others))), None)

    def follow(self, stages: Sequence[Stage], *, text_only: bool = False) -> bool:
        """Does what is published until the run is finished (or its text, with `text_only`); returns whether it is."""
        by_name, done = {stage.name: stage for stage in stages}, None
        while not self.stop():
            on = published_stage(self.directory)
            if on is None or on[0] == FINISHED or (text_only and on[0] != TEXT):
                return on is not None
            if on == done:
                if text_only or self.watch.is_dead(DRIVER):
                    return text_only
                self.wait()
                continue
            if on[0] in by_name:
                self.take(by_name[on[0]])
            done = on
        return False
