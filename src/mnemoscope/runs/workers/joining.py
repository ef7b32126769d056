"""How a process joins a run as a worker: by a command, or as an actor of Ray."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mnemoscope.atlas.manifest import open_as_mined
from mnemoscope.errors import OptionError, PartsDiffer
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.runs.plan import library_versions
from mnemoscope.runs.run import Run
from mnemoscope.runs.states import WorkerClosed
from mnemoscope.runs.workers.heartbeats import BEATS
from mnemoscope.runs.workers.worker import Stage, Worker

if TYPE_CHECKING:
    from mnemoscope.models import LanguageModel

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

    _check_libraries(run)
    run.copy = run.open_text()
    loaded = _load(run, model, opening, device)
    for count in range(1_000_000):
        worker = Worker(run, loaded, name=f"{name}-again-{count}" if count else name, stop=stop)
        with worker.beating():
            _check_devices(worker)
            try:
                with hold_model(loaded):
                    return worker.follow(stages, text_only=text_only)
            except WorkerClosed:  # others do what was not saved
                continue
    return False


def _check_libraries(run: Run) -> None:
    """Raises PartsDiffer unless the versions here are those of the plan, or others that were accepted."""
    from mnemoscope.models import kernels_chosen

    plan, here = run.plan, library_versions()
    if plan.kernels != kernels_chosen():
        raise PartsDiffer(
            f"this worker's environment sets {kernels_chosen() or 'nothing'} for the choice of kernels, the plan's"
            f" {plan.kernels or 'nothing'}; start it in the plan's environment"
        )
    others = [name for name in here if here[name] != getattr(plan, name)]
    if others and here not in run.versions:
        said = ", ".join(f"{name} {here[name]} (the plan has {getattr(plan, name)})" for name in others)
        raise PartsDiffer(f"this worker has {said}; install the plan's version here")


def _load(run: Run, model: str | None, opening: ModelOptions, device: str | None) -> "LanguageModel":
    from mnemoscope.models import load_for_ids, load_model, set_threads

    plan = run.plan
    set_threads(plan.threads)
    load = load_model if plan.ids_field is None else load_for_ids
    model, opening = open_as_mined(run.directory, model, opening)
    card = card_from_environment(os.environ) if device is None and plan.device == "cuda" else None
    device = device or (plan.device if card is None else f"cuda:{card}")
    loaded = load(model, dtype=plan.dtype, device=device, **opening.keywords())
    if loaded.fingerprint != plan.model_fingerprint:
        raise PartsDiffer(
            f"{loaded.spec} is another model here than the one that the run was prepared with; give that as --model"
        )
    if loaded.device.type != plan.device:
        raise PartsDiffer(f"this worker runs on {loaded.device.type}, the plan is for {plan.device}; set --device")
    if loaded.attention != plan.attention:
        raise PartsDiffer(
            f"this worker computes attention by {loaded.attention}, the plan is for {plan.attention};"
            " use the plan's libraries"
        )
    return loaded


def _check_devices(worker: Worker) -> None:
    """Raises PartsDiffer if others compute on another kind of device, unless that is allowed."""
    beats = (worker.directory / BEATS).glob("*.json")
    names = {worker.watch.last_beat(path.stem).get("device") for path in beats}
    others = sorted(str(name) for name in names - {None, "", worker.device})
    if others and not worker.run.mixed_devices:
        raise PartsDiffer(
            f"this worker computes on {worker.device}, others on {', '.join(others)}, and last bits differ between"
            " them; use machines of one kind, or begin with --allow-mixed-devices"
        )


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
