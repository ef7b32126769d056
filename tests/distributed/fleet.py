"""A fleet in one process: workers that take turns, step by step, some of them killed."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemoscope.corpus import open_source
from mnemoscope.foundation.files import make_folder, read_object, write_json
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining.text.state import MiningState, StateFacts, StateShape
from mnemoscope.mining.text_pass import TextWork
from mnemoscope.models import LanguageModel
from mnemoscope.runs.run import Run
from mnemoscope.runs.states import CHECKPOINT, STATES, StateFolder, WorkerClosed, closed_folders, folders_in
from mnemoscope.runs.workers.heartbeats import beat_path
from mnemoscope.runs.workers.leases import TEXT, publish
from mnemoscope.runs.workers.worker import Worker

GONE = 4_000_000
"""The number of no process."""


def settle(directory: Path, model: LanguageModel, text: Path, options: MiningOptions, **fleet: Any) -> Run:
    """A run of this text that is settled for workers."""
    source = open_source(str(text), text_field="text", ids_field=None, split=options.cut)
    asked = FleetOptions(workers=2, **fleet)
    run = Run.open(directory, options, model, {"corpus": source}, fleet=asked)
    publish(directory, TEXT)
    return run


class FleetWorker:
    """One worker whose every step is asked for."""

    def __init__(self, run: Run, name: str, model: LanguageModel) -> None:
        self.worker = Worker(replace(Run.read(run.directory), copy=run.copy), model, name=name)
        self.worker.wait = lambda: None  # type: ignore[method-assign]
        self.heart = self.worker.beating()
        make_folder(beat_path(run.directory, name).parent)
        self.heart.beat()
        self.work = TextWork(self.worker)
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        if self.steps % 10 == 0:
            self.heart.beat()
        more = self.work.step()
        if self.worker.run.checkpoint_every == 0:
            self.work.save()
        return more

    def kill(self) -> int:
        """As SIGKILL does: nothing is saved, its heartbeat stays behind; returns how many batches are lost."""
        path = beat_path(self.worker.directory, self.worker.name)
        write_json(path, read_object(path) | {"pid": GONE})
        saved = StateFolder(self.worker.directory, self.worker.name).state
        kept = sum(end - first for first, end in StateFacts.read(saved).finished) if saved.exists() else 0
        return max(0, self.worker.said["batches"] - kept)  # of a state that it took over it says nothing at first


@dataclass
class Outcome:
    """What became of a fleet: the whole state, and what each death cost."""

    state: MiningState
    lost: list[int]
    states: int
    closed_alive: int


def run_fleet(run: Run, model: LanguageModel, *, workers: int, deaths: int, seed: int) -> Outcome:
    """So many workers in random turns, of which `deaths` die at random moments and are replaced."""
    chance, directory = random.Random(seed), run.directory
    fleet = [FleetWorker(run, f"w-{number}", model) for number in range(workers)]
    lost: list[int] = []
    turns, closed_alive, number = 0, 0, workers
    moments = sorted(chance.sample(range(run.batches), deaths), reverse=True)
    while fleet:
        turns += 1
        worker = chance.choice(fleet)
        if moments and turns >= moments[-1]:
            moments.pop()
            lost.append(worker.kill())
            fleet.remove(worker)
            fleet.append(FleetWorker(run, f"w-{number}", model))
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
        StateFolder(directory, folder.name).close()
    return Outcome(closed_state(run, model), lost, len(closed_folders(directory)), closed_alive)


def closed_state(run: Run, model: LanguageModel) -> MiningState:
    """The states that workers have left, merged."""
    whole = MiningState(StateShape.of(model, keep=run.plan.triggers, layers=run.plan.layers))
    for folder in closed_folders(run.directory):
        whole.absorb(folder / CHECKPOINT, plan=run.plan.hash())
    return whole


def one_process(directory: Path, model: LanguageModel, text: Path, options: MiningOptions) -> MiningState:
    """The state that a run of one process makes."""
    run = settle(directory, model, text, options)
    TextWork(Worker(run, model)).run()
    return closed_state(run, model)
