"""How a process joins a run as a worker: by a command, or as an actor of Ray."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.runs.plan import load_planned
from mnemoscope.runs.run import Run
from mnemoscope.runs.states import WorkerClosed, check_devices
from mnemoscope.runs.workers.heartbeats import BEATS
from mnemoscope.runs.workers.worker import Stage, Worker

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,80}")


def work(
    directory: Path,
    name: str,
    stages: Sequence[Stage],
    *,
    model: str | None = None,
    opening: ModelOptions = AS_USUAL,
    device: str | None = None,
    text_only: bool = False,
    stop: Callable[[], bool] = lambda: False,
    without_model: bool = False,
) -> bool:
    """Works on the run in `directory` until it is finished, or `stop` returns True, and saves; returns whether it is
    finished.

    `name` is new (`new_name`). `model` is needed if the plan's has moved, `opening` is how it is opened here, `device`
    what it runs on; `text_only` ends after the text.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(f"{name!r} is not a name for a worker; use letters, digits and -")
    run = Run.read(directory)
    if without_model:
        worker = Worker(run, None, name=name, stop=stop)
        with worker.beating():
            return worker.follow(stages)
    from mnemoscope.models.object_state import hold_model

    run.copy = run.open_text()
    card = card_from_environment(os.environ)
    if device is None and run.plan.device == "cuda" and card is not None:
        device = f"cuda:{card}"
    loaded = load_planned(run.plan, directory, model, opening, device=device, versions=run.versions)
    for count in range(1_000_000):
        worker = Worker(run, loaded, name=f"{name}-again-{count}" if count else name, stop=stop)
        with worker.beating():
            beats = (directory / BEATS).glob("*.json")
            others = [str(worker.watch.last_beat(path.stem).get("device", "")) for path in beats]
            check_devices([worker.device, *others], mixed=run.mixed_devices)
            try:
                with hold_model(loaded):
                    return worker.follow(stages, text_only=text_only)
            except WorkerClosed:  # others do what was not saved
                continue
    return False


def worker_name_from_environment(environment: Mapping[str, str]) -> str | None:
    """None if none of them has started it."""
    job = _number(environment, "SLURM_ARRAY_JOB_ID")
    task = _number(environment, "SLURM_ARRAY_TASK_ID")
    if task is not None:
        return f"slurm-{task}" if job is None else f"slurm-{job}-{task}"
    rank = _number(environment, "RANK")
    return None if rank is None else f"rank-{rank}"


def card_from_environment(environment: Mapping[str, str]) -> int | None:
    """The worker's own card on a machine with several workers; None if unknown, or if no other is visible."""
    if environment.get("CUDA_VISIBLE_DEVICES", "").count(",") == 0 and "CUDA_VISIBLE_DEVICES" in environment:
        return None
    rank = _number(environment, "LOCAL_RANK")
    return _number(environment, "SLURM_LOCALID") if rank is None else rank


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if re.fullmatch("[0-9]+", value) else None
