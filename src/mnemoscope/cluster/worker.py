"""One worker of a run: takes leases of the text, counts them in its own state, and then does units of later stages.

Every launcher runs this loop. A worker refuses other libraries, another model, text or device than the plan's when it
starts. All instructions are in the folder; workers come and go.
"""

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from mnemoscope.atlas.manifest import open_as_mined, unfinished_plan
from mnemoscope.cluster.coordination.heartbeats import BEATS, DRIVER, Heartbeat
from mnemoscope.cluster.coordination.leases import DONE, Lease, LeaseFolder
from mnemoscope.cluster.environment import card_from_environment
from mnemoscope.cluster.shared_run import SharedRun
from mnemoscope.cluster.stages import FINISHED, TEXT, PublishedStage
from mnemoscope.cluster.state_folders import WorkerClosed, closed_folders
from mnemoscope.cluster.text_work import TextWork
from mnemoscope.cluster.worker_context import WorkerContext
from mnemoscope.errors import OptionError, PartsDiffer
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.plan.mining_plan import MiningPlan, library_versions
from mnemoscope.mining.stages import STAGES, run_unit
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.state import StateFacts
from mnemoscope.models import LanguageModel, kernels_chosen, load_for_ids, load_model, set_threads
from mnemoscope.models.object_state import hold_model

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,80}")
_AFTER_TEXT = {stage.name: stage for stage in STAGES}


def new_name(word: str = "worker") -> str:
    """A unique name; a worker that restarts is a new one."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', word)[:40].strip('-') or 'worker'}-{uuid4().hex[:8]}"


def is_of(name: str, worker: str) -> bool:
    """Whether `name` is a name of `worker`: its first, or one after it was taken for dead and began again."""
    return name == worker or name.startswith(f"{worker}-again-")


def work(
    directory: Path,
    name: str,
    *,
    model: str | None = None,
    opening: ModelOptions = AS_USUAL,
    device: str | None = None,
    text_only: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Works on the run in `directory` until it is finished, or `stop` returns True, and saves; returns whether it is
    finished.

    `name` is new (`new_name`). `model` is needed if the plan's has moved, `opening` is how it is opened here, `device`
    what it runs on; `text_only` ends after the text.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(f"{name!r} is not a name for a worker; use letters, digits and -")
    plan, run = SharedRun.read(directory)
    _check_libraries(plan, directory)
    copy = run.open_text(directory, plan)
    set_threads(plan.threads)
    context = WorkerContext(directory, name, plan, run, _load(directory, plan, model, opening, device), copy, stop)
    for count in range(1, 1_000_000):
        with Heartbeat(directory, context.name, lambda: context.said, patience=run.patience):
            _check_devices(context)
            try:
                with hold_model(context.model):
                    return _run_stages(context, text_only=text_only)
            except WorkerClosed:  # others do what was not saved
                context.name = f"{name}-again-{count}"
    return False


def _check_libraries(plan: MiningPlan, directory: Path) -> None:
    """Raises PartsDiffer unless the versions here are those of the plan, or others that were accepted."""
    if plan.kernels != kernels_chosen():
        raise PartsDiffer(
            f"this worker's environment sets {kernels_chosen() or 'nothing'} for the choice of kernels, the plan's"
            f" {plan.kernels or 'nothing'}; start it in the plan's environment"
        )
    here, begun = library_versions(), unfinished_plan(directory) or {}
    if here in (begun.get("versions") or []):
        return
    if others := [name for name in here if here[name] != getattr(plan, name)]:
        said = ", ".join(f"{name} {here[name]} (the plan has {getattr(plan, name)})" for name in others)
        raise PartsDiffer(f"this worker has {said}; install the plan's version here")


def _load(
    directory: Path, plan: MiningPlan, model: str | None, opening: ModelOptions, device: str | None
) -> LanguageModel:
    load = load_model if plan.ids_field is None else load_for_ids
    model, opening = open_as_mined(directory, model, opening)
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


def _check_devices(context: WorkerContext) -> None:
    """Raises PartsDiffer if others compute on another kind of device, unless that is allowed."""
    directory = context.directory
    names = {context.watch.last_beat(path.stem).get("device") for path in (directory / BEATS).glob("*.json")}
    names |= {StateFacts.read(folder / CHECKPOINT).device for folder in closed_folders(directory)}
    others = sorted(str(name) for name in names - {None, "", context.device})
    if others and not context.run.mixed_devices:
        raise PartsDiffer(
            f"this worker computes on {context.device}, others on {', '.join(others)}, and last bits differ between"
            " them; use machines of one kind, or begin with --allow-mixed-devices"
        )


def _run_stages(context: WorkerContext, *, text_only: bool) -> bool:
    """Does published stages; returns whether the run is finished (or its text, with `text_only`)."""
    run: MiningRun | None = None
    done = None
    while not context.stop():
        stage = PublishedStage.read(context.directory)
        if stage is None or stage.name == FINISHED or (text_only and stage.name != TEXT):
            return stage is not None
        if stage == done:
            if text_only or context.watch.is_dead(DRIVER):
                return text_only
            context.wait()
            continue
        context.tell(stage=stage.name)
        if stage.name == TEXT:
            TextWork(context).run()
        elif stage.name in _AFTER_TEXT:
            states = [context.directory / state for state in stage.inputs]
            run = run or MiningRun(
                RunContext(context.directory),
                context.model,
                context.plan,
                states,
                context.copy,
                mixed=context.run.mixed_devices,
                name=context.name,
            )
            _take_units(context, stage, run)
        done = stage
    return False


def _take_units(context: WorkerContext, stage: PublishedStage, run: MiningRun) -> None:
    """Does units of a stage after the text until all are done, or another stage has begun."""
    what = _AFTER_TEXT[stage.name]
    run.record.read()
    leases = LeaseFolder.find(context.directory, stage.name)
    if leases is None:
        leases = LeaseFolder(context.directory, stage.name, what.count(run))
        leases.make()
    while not context.stop() and PublishedStage.read(context.directory) == stage:
        waiting = [lease for lease in leases.read() if lease.owner != DONE]
        if not waiting:
            return
        lease = _choose(context, waiting)
        taken = leases.take(lease, context.name) if lease else None
        if taken is None:
            context.wait()
            continue
        if (what.name, taken.number) not in run.record.units:
            run_unit(run, what, taken.number)
        leases.end(taken)


def _choose(context: WorkerContext, waiting: list[Lease]) -> Lease | None:
    """A free task, or that of a dead worker: doing one twice does no harm."""
    if free := [lease for lease in waiting if lease.is_free]:
        return random.choice(free)
    return next((lease for lease in waiting if context.watch.is_dead(lease.owner)), None)
