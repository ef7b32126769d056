"""`mine` with workers: what a user asks for made a run of many, from the text to the sealed atlas."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from mnemoscope.distributed.driver import Driver, Launcher
from mnemoscope.distributed.local_launcher import LocalLauncher
from mnemoscope.distributed.settling import PATIENCE, SettledRun, settle_run
from mnemoscope.distributed.stages import Stage
from mnemoscope.errors import OptionError
from mnemoscope.mining.late_stages import LATE_STAGES, PATTERN_STAGES, WorkersFacts, task_count
from mnemoscope.mining.run import begin_mining, check_folder
from mnemoscope.mining.run_folder import hold_folder
from mnemoscope.mining.sealing import finish_patterns, seal_atlas
from mnemoscope.mining.steps import RunContext
from mnemoscope.mining_options import MiningOptions
from mnemoscope.progress import Progress, ignore_progress

_TEAM = 8
"""Threads that one process makes good use of on a CPU."""


@dataclass(frozen=True)
class FleetOptions:
    """How many workers there are, and where."""

    workers: int | None = None
    """None: one for every card, on a CPU one for every eight cores."""
    ray: str | None = None
    """The address of a Ray cluster, `local` for one that is started here; None: processes of this machine."""
    gpus_per_worker: int = 1
    mixed_devices: bool = False
    patience: float = PATIENCE
    """Seconds of silence after which a worker counts as dead."""


def mine_with_workers(
    model: str,
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: MiningOptions,
    fleet: FleetOptions,
    *,
    progress: Progress = ignore_progress,
) -> Path:
    """The folder of the finished atlas, mined by workers; goes on if it was interrupted, with any number of them.

    Every byte is that of one process with as many threads as a worker has. Raises what `mine` raises, and MiningError
    where no worker can work.
    """
    directory = Path(out)
    with _settle(model, corpus, directory, options, fleet, progress=progress) as (context, settled):
        _drive(context, settled, options, fleet)
    return directory


def prepare_run(
    model: str,
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: MiningOptions,
    fleet: FleetOptions,
    *,
    progress: Progress = ignore_progress,
) -> SettledRun:
    """Reads the text and settles the plan in the folder, for workers that are started by hand or by a scheduler."""
    with _settle(model, corpus, Path(out), options, fleet, progress=progress) as (_, settled):
        return settled


@contextmanager
def _settle(
    model: str,
    corpus: str | os.PathLike[str],
    directory: Path,
    options: MiningOptions,
    fleet: FleetOptions,
    *,
    progress: Progress,
) -> Iterator[tuple[RunContext, SettledRun]]:
    """The run settled in its folder, which stays locked; the model is let go, since workers have their own."""
    if options.part is not None:
        raise OptionError("--part is a fixed share of the batches, workers take shares as they go: leave one out")
    beginning = begin_mining(model, corpus, directory, options, threads=_threads(fleet), progress=progress)
    with hold_folder(directory):
        check_folder(directory, options)
        context = RunContext(directory, options.checkpoint_every, progress)
        settled = settle_run(context, beginning, options, mixed_devices=fleet.mixed_devices, patience=fleet.patience)
        del beginning
        gc.collect()
        context.heap.trim()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        yield context, settled


def _threads(fleet: FleetOptions) -> int:
    """The threads of a worker: the cores of this machine, divided."""
    return max(1, torch.get_num_threads() // (fleet.workers or 1))


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def count_workers(fleet: FleetOptions, device: str) -> int:
    """How many workers were asked for, or fit this machine."""
    if fleet.workers is not None:
        return fleet.workers
    if device == "cuda":
        return max(1, torch.cuda.device_count() // fleet.gpus_per_worker)
    return max(1, torch.get_num_threads() // _TEAM)


def _launcher(context: RunContext, settled: SettledRun, options: MiningOptions, fleet: FleetOptions) -> Launcher:
    cards = torch.cuda.device_count() if settled.plan.device == "cuda" else 0
    words: list[str] = []
    for name, value in options.opening.keywords().items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return LocalLauncher(
        context.directory, threads=settled.plan.threads, words=words, cards=cards, each=fleet.gpus_per_worker
    )


def _drive(context: RunContext, settled: SettledRun, options: MiningOptions, fleet: FleetOptions) -> None:
    workers = count_workers(fleet, settled.plan.device)
    driver = Driver(context, settled, _launcher(context, settled, options, fleet), workers=workers)
    plan, work = settled.plan, context.work
    with driver.running():
        state = driver.read_text()
        _run_stages(driver, settled, LATE_STAGES, state)
        facts = WorkersFacts.read(work, plan)
        seal_atlas(
            context, facts.model, plan, facts.halved, counts=settled.counts, versions=settled.versions,
            questions=facts.questions, equality=facts.equality, keep_work=True,
        )  # fmt: skip
        _run_stages(driver, settled, PATTERN_STAGES, state)
    finish_patterns(context.directory, keep_work=options.keep_work)


def _run_stages(driver: Driver, settled: SettledRun, stages: Sequence[str], state: str) -> None:
    layers, pieces = len(settled.plan.layers), settled.run.pieces
    for stage in stages:
        driver.run_tasks(Stage(stage, task_count(stage, layers=layers, pieces=pieces), (state,)))
