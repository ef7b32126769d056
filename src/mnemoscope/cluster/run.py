"""`mine` with workers, from the text to the sealed atlas."""

import gc
import os
from dataclasses import replace
from pathlib import Path

import torch

from mnemoscope.atlas.lock import lock_folder
from mnemoscope.cluster.driver import Driver, Launcher
from mnemoscope.cluster.launchers.local_launcher import LocalLauncher
from mnemoscope.cluster.launchers.ray_launcher import RayLauncher
from mnemoscope.cluster.settling import settle_run
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.fleet_options import RAY_HERE, FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.run import begin_mining, begun_threads
from mnemoscope.mining.run_folder import check_writable, hold, is_finished
from mnemoscope.mining.sealing import seal_run
from mnemoscope.mining.stages import mined_stages
from mnemoscope.mining.steps import RunContext

_TEAM = 8
"""Threads of which one process makes good use on a CPU."""


def mine_with_workers(
    model: str,
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: MiningOptions,
    fleet: FleetOptions,
    *,
    progress: Progress = ignore_progress,
) -> Path:
    """Mines with workers; returns the folder of the finished atlas. Resumes with any number of workers. Every byte is
    that of one process with as many threads as a worker. With `prepare` in the fleet's options it only reads the text
    and settles the plan in the folder, for workers started by hand or by a scheduler.
    """
    directory = Path(out)
    if fleet.prepare:
        check_writable(directory, force=options.force)
    if options.part is not None:
        raise OptionError("--part is a fixed share of the batches, but workers share all of them; leave one out")
    fleet = _choose_number(fleet, options, directory)
    inputs = begin_mining(model, corpus, directory, options, threads=_threads(fleet), progress=progress)
    with hold(lock_folder(directory)):
        check_writable(directory, force=options.force, again=True)
        context = RunContext(directory, options.checkpoint_every, progress)
        if is_finished(context, inputs, options):
            return directory
        mixed = fleet.allow_mixed_devices
        settled = settle_run(context, inputs, options, mixed_devices=mixed, patience=fleet.patience)
        if fleet.prepare:
            return directory
        del inputs  # workers have their own model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        plan = settled.plan
        launcher, workers = _start_launcher(directory, plan, options.opening, fleet)
        driver = Driver(context, settled, launcher, workers=workers)
        with driver.running():
            states = driver.read_text()
            for stage in mined_stages(plan):
                driver.run_stage(stage.name, states, needless=stage.joined)
        seal_run(
            context, plan, settled.facts, counts=settled.counts, versions=settled.versions, keep_work=options.keep_work
        )
    return directory


def _threads(fleet: FleetOptions) -> int:
    """The threads of a worker: the cores of this machine, divided; on a cluster at most `_TEAM`."""
    threads = torch.get_num_threads()
    if fleet.ray is not None and fleet.ray != RAY_HERE:
        return min(_TEAM, threads)
    return max(1, threads // (fleet.count or 1))


def _choose_number(fleet: FleetOptions, options: MiningOptions, directory: Path) -> FleetOptions:
    """The default number of workers for this machine; Ray has its own."""
    if fleet.count is not None or fleet.ray is not None:
        return fleet
    if cards := 0 if options.device == "cpu" else torch.cuda.device_count():
        return replace(fleet, workers=max(1, cards // max(1, fleet.cards)))
    threads = begun_threads(directory, options) or _TEAM
    return replace(fleet, workers=max(1, torch.get_num_threads() // threads))


def _start_launcher(
    directory: Path, plan: MiningPlan, opening: ModelOptions, fleet: FleetOptions
) -> tuple[Launcher, int]:
    """The launcher, and the number of workers."""
    if fleet.ray is not None:
        options = {**vars(opening), "device": plan.device}
        each = fleet.cards if plan.device == "cuda" else 0
        ray = RayLauncher(
            directory,
            address=fleet.ray,
            threads=plan.threads,
            gpus_per_worker=each,
            worker_options=options,
            workers=fleet.count,
        )
        return ray, fleet.count or max(1, ray.capacity())
    cards = torch.cuda.device_count() if plan.device == "cuda" else 0
    local = LocalLauncher(directory, threads=plan.threads, words=opening.words(), cards=cards, each=fleet.cards)
    return local, fleet.count or 1
