"""A run is settled before workers begin: text read, plan complete, leases laid out in the atlas's locked folder.

Done by whoever drives the run, or by `mine --prepare` alone. What a single process had mined there already is taken
over as the state of a worker that ended.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import WORK
from mnemoscope.cluster.heartbeats import BEATS
from mnemoscope.cluster.leases import LEASES, LeaseFolder, check_file_system
from mnemoscope.cluster.shared_run import SharedRun, choose_lease, hash_of_text
from mnemoscope.cluster.single_run import SINGLE_PROCESS
from mnemoscope.cluster.stages import TEXT, PublishedStage
from mnemoscope.cluster.state_folders import CLOSED, STATES, StateFolder
from mnemoscope.foundation.files import storing
from mnemoscope.foundation.mining_options import MiningOptions
from mnemoscope.kernels.devices import device_name, join_names
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.run_folder import RunInputs, begin_run, settle_text
from mnemoscope.mining.sealing import model_facts
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.state import MiningState, StateShape

PATIENCE = 60.0
"""Seconds of silence after which a worker counts as dead, usually."""
PIECES = 32
"""Tasks into which a pass is cut that has no layers of its own: the number may not change with that of workers."""


@dataclass(frozen=True)
class SettledRun:
    """A run as its driver has it: no model, no text."""

    plan: MiningPlan
    run: SharedRun
    versions: list[dict[str, str]]
    counts: dict[str, Any]
    """Those of the text, as the manifest has them."""
    facts: dict[str, Any]
    """What the manifest says of the model."""


def settle_run(
    context: RunContext,
    beginning: RunInputs,
    options: MiningOptions,
    *,
    mixed_devices: bool = False,
    patience: float = PATIENCE,
) -> SettledRun:
    """The run in the locked folder, ready for workers: begun now, or before, and then as it was laid out.

    Raises what reading a text raises, PlanDiffers, StoreFailed (a file system that workers cannot share).
    """
    directory, model = context.directory, beginning.model
    check_file_system(directory)
    text = settle_text(context, beginning, options)
    plan, hashed = text.plan, hash_of_text(directory)
    if text.work is not None and text.work.get("text") == hashed:
        mixed_devices = mixed_devices or text.work["mixed_devices"]
        run = replace(SharedRun(**text.work), checkpoint_every=options.checkpoint_every, mixed_devices=mixed_devices)
    else:
        _clear_shared(directory)
        batches = BatchLoader(text.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed).count
        tokens = int(text.copy.counts["mined_tokens"])
        lease = choose_lease(
            batches, tokens=tokens, parameters=model.sizes.parameters, device=plan.device, threads=plan.threads
        )
        run = SharedRun(
            batches=batches, lease_batches=lease, tokens=tokens, text=hashed,
            pieces=PIECES, checkpoint_every=options.checkpoint_every, patience=patience, mixed_devices=mixed_devices,
        )  # fmt: skip
        first = _take_over(context, beginning, plan)
        LeaseFolder(directory, TEXT, run.leases).make(again=-(-first // lease))
        PublishedStage(TEXT, run.leases).publish(directory)
    text.copy.release()
    # Last: whoever finds it finds the rest.
    begin_run(directory, plan, None, text.versions, places=beginning.places, work=run.document())
    (context.work / CHECKPOINT).unlink(missing_ok=True)
    return SettledRun(plan, run, text.versions, {**text.copy.counts}, model_facts(model))


def _take_over(context: RunContext, beginning: RunInputs, plan: MiningPlan) -> int:
    """Makes the state of a run of one process, if there is one, that of a closed worker; how many batches it counts."""
    checkpoint = context.work / CHECKPOINT
    if not checkpoint.is_file():
        return 0
    state = MiningState(StateShape.of(beginning.model, keep=plan.triggers, layers=plan.layers))
    state.load(checkpoint, plan=plan.hash())
    counted, state.next_batch = state.next_batch, 0
    state.finished = [(0, counted)]
    state.device = join_names(state.device, device_name(beginning.model.device))
    folder = StateFolder(context.directory, SINGLE_PROCESS)
    folder.make()
    folder.save(state.serialise(plan=plan.hash()))
    folder.close(context.directory)
    return counted


def _clear_shared(directory: Path) -> None:
    """Removes what workers left of another run."""
    for folder in (LEASES, STATES, CLOSED, BEATS):
        with storing(directory / folder):
            shutil.rmtree(directory / folder, ignore_errors=True)
    for path in (directory / WORK).glob("*.*"):
        if path.is_file() and path.name != CHECKPOINT:
            path.unlink(missing_ok=True)
