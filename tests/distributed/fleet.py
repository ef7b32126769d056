"""A fleet in one process: workers that take turns, step by step, some of them killed."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemoscope.cluster.coordination.heartbeats import Heartbeat, beat_path
from mnemoscope.cluster.settling import SettledRun, settle_run
from mnemoscope.cluster.state_folders import STATES, StateFolder, WorkerClosed, closed_folders, folders_in
from mnemoscope.cluster.text_work import TextWork
from mnemoscope.cluster.worker_context import WorkerContext
from mnemoscope.corpus import open_source
from mnemoscope.foundation.files import make_folder, read_object, write_json
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.progress import ignore_progress
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.run_folder import RunInputs
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.state import MiningState, StateFacts, StateShape
from mnemoscope.mining.text_pass import read_text
from mnemoscope.models import LanguageModel

GONE = 4_000_000
"""The number of no process."""


def begin(model: LanguageModel, text: Path, options: MiningOptions) -> RunInputs:
    source = open_source(str(text), text_field="text", ids_field=None, split=options.cut)
    return RunInputs(model, MiningPlan.derive(options, model, corpus=source.spec, validation=None), source, None)


def settle(directory: Path, beginning: RunInputs, options: MiningOptions, **more: Any) -> SettledRun:
    return settle_run(RunContext(directory), beginning, options, **more)


class FleetWorker:
    """One worker whose every step is asked for."""

    def __init__(
        self, directory: Path, name: str, settled: SettledRun, model: LanguageModel, *, device: str | None = None
    ) -> None:
        copy = settled.run.open_text(directory, settled.plan)
        self.context = WorkerContext(directory, name, settled.plan, settled.run, model, copy, lambda: False)
        self.context.wait = lambda: None  # type: ignore[method-assign]
        self.context.device = device or self.context.device
        self.heart = Heartbeat(directory, name, lambda: self.context.said, patience=settled.run.patience)
        make_folder(beat_path(directory, name).parent)
        self.heart.beat()
        self.work = TextWork(self.context)
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        if self.steps % 10 == 0:
            self.heart.beat()
        return self.work.step()

    def kill(self) -> int:
        """As SIGKILL does: nothing is saved, its heartbeat stays behind; returns how many batches are lost."""
        path = beat_path(self.context.directory, self.context.name)
        write_json(path, read_object(path) | {"pid": GONE})
        saved = StateFolder(self.context.directory, self.context.name).state
        kept = sum(end - first for first, end in StateFacts.read(saved).finished) if saved.exists() else 0
        return max(0, self.context.said["batches"] - kept)  # of a state that it took over it says nothing at first


@dataclass
class Outcome:
    """What became of a fleet: the whole state, and what each death cost."""

    state: MiningState
    lost: list[int]
    states: int
    closed_alive: int


def run_fleet(
    directory: Path, settled: SettledRun, model: LanguageModel, *, workers: int, deaths: int, seed: int
) -> Outcome:
    """So many workers in random turns, of which `deaths` die at random moments and are replaced."""
    chance = random.Random(seed)
    fleet = [FleetWorker(directory, f"w-{number}", settled, model) for number in range(workers)]
    lost: list[int] = []
    turns, closed_alive, number = 0, 0, workers
    moments = sorted(chance.sample(range(settled.run.batches), deaths), reverse=True)
    while fleet:
        turns += 1
        worker = chance.choice(fleet)
        if moments and turns >= moments[-1]:
            moments.pop()
            lost.append(worker.kill())
            fleet.remove(worker)
            fleet.append(FleetWorker(directory, f"w-{number}", settled, model))
            number += 1
            continue
        try:
            if not worker.step():
                worker.work.end()
                fleet.remove(worker)
        except WorkerClosed:
            closed_alive += 1
            fleet.remove(worker)
    for folder in folders_in(directory / STATES):  # as the driver does in the end
        StateFolder(directory, folder.name).close(directory)
    return Outcome(closed_state(directory, settled, model), lost, len(closed_folders(directory)), closed_alive)


def closed_state(directory: Path, settled: SettledRun, model: LanguageModel) -> MiningState:
    """The states that workers have left, merged."""
    shape = StateShape.of(model, keep=settled.plan.triggers, layers=settled.plan.layers)
    whole = MiningState(shape)
    for folder in closed_folders(directory):
        whole.absorb(folder / CHECKPOINT, plan=settled.plan.hash())
    return whole


def one_process(directory: Path, beginning: RunInputs, options: MiningOptions) -> MiningState:
    """The state that a run of one process makes."""
    from mnemoscope.mining.run_folder import settle_text

    context = RunContext(directory)
    text = settle_text(context, beginning, options)
    RunRecord(directory, text.plan.hash()).take_up(ignore_progress)
    path = read_text(context, beginning.model, text.copy, text.plan, share=None)
    state = MiningState(StateShape.of(beginning.model, keep=text.plan.triggers, layers=text.plan.layers))
    state.load(path, plan=text.plan.hash())
    return state
