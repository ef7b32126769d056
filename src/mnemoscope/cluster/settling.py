"""Settles a run before workers begin: text read, plan complete, leases made in the atlas's locked folder.

Done by the driver, or by `mine --prepare` alone. What a single process has mined there is taken over as the state of a
closed worker.
"""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import WORK
from mnemoscope.cluster.coordination.heartbeats import BEATS
from mnemoscope.cluster.coordination.leases import LEASES, LeaseFolder
from mnemoscope.cluster.shared_run import SharedRun, choose_lease, hash_of_text
from mnemoscope.cluster.single_run import SINGLE_PROCESS
from mnemoscope.cluster.stages import TEXT, PublishedStage
from mnemoscope.cluster.state_folders import CLOSED, STATES, StateFolder, folders_in
from mnemoscope.foundation.files import storing
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.kernels.devices import device_name, join_names
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.record import RunRecord
from mnemoscope.mining.run_folder import RunInputs, begin_run, settle_text
from mnemoscope.mining.sealing import model_facts
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.state import MiningState, StateShape


@dataclass(frozen=True)
class SettledRun:
    """A run as its driver has it, without model and text."""

    plan: MiningPlan
    run: SharedRun
    versions: list[dict[str, str]]
    counts: dict[str, Any]
    """Of the text, for the manifest."""
    facts: dict[str, Any]
    """Of the model, for the manifest."""


def settle_run(
    context: RunContext,
    inputs: RunInputs,
    options: MiningOptions,
    *,
    mixed_devices: bool = False,
    patience: float = FleetOptions.patience,
) -> SettledRun:
    """Begins or resumes the run."""
    directory, model = context.directory, inputs.model
    text = settle_text(context, inputs, options)
    plan, hashed = text.plan, hash_of_text(directory)
    record = RunRecord(directory, plan.hash())
    record.take_up(context.progress)
    if text.work is not None and text.work.get("text") == hashed:
        mixed_devices = mixed_devices or text.work["mixed_devices"]
        run = replace(SharedRun(**text.work), checkpoint_every=options.checkpoint_every, mixed_devices=mixed_devices)
        for folder in (*folders_in(directory / STATES), *folders_in(directory / CLOSED)):
            if not record.finds(folder / CHECKPOINT, context.progress):
                (folder / CHECKPOINT).unlink(missing_ok=True)
    else:
        _clear_shared(directory)
        batches = BatchLoader(text.copy, model, batch_tokens=plan.batch_tokens, seed=plan.seed).count
        tokens = int(text.copy.counts["mined_tokens"])
        lease = choose_lease(
            batches, tokens=tokens, parameters=model.sizes.parameters, device=plan.device, threads=plan.threads
        )
        run = SharedRun(
            batches=batches,
            lease_batches=lease,
            tokens=tokens,
            text=hashed,
            checkpoint_every=options.checkpoint_every,
            patience=patience,
            mixed_devices=mixed_devices,
        )
        first = _take_over(context, inputs, plan, record)
        LeaseFolder(directory, TEXT, run.leases).make(again=-(-first // lease))
        PublishedStage(TEXT).publish(directory)
    text.copy.release()
    # Last: a process that finds it finds the rest.
    begin_run(directory, plan, None, text.versions, places=inputs.places, work=asdict(run))
    (context.work / CHECKPOINT).unlink(missing_ok=True)
    return SettledRun(plan, run, text.versions, {**text.copy.counts}, model_facts(model))


def _take_over(context: RunContext, inputs: RunInputs, plan: MiningPlan, record: RunRecord) -> int:
    """Makes the state of a single process that of a closed worker; returns the number of its batches."""
    checkpoint = context.work / CHECKPOINT
    if not record.finds(checkpoint, context.progress):
        return 0
    state = MiningState(StateShape.of(inputs.model, keep=plan.triggers, layers=plan.layers, random=plan.random_seed))
    state.load(checkpoint, plan=plan.hash())
    counted, state.next_batch = state.next_batch, 0
    state.finished = [(0, counted)]
    state.device = join_names(state.device, device_name(inputs.model.device))
    folder = StateFolder(context.directory, SINGLE_PROCESS)
    folder.make()
    folder.save(state.serialise(plan=plan.hash()), record)
    folder.close(context.directory)
    return counted


def _clear_shared(directory: Path) -> None:
    """Removes what workers of another run left."""
    for folder in (LEASES, STATES, CLOSED, BEATS):
        with storing(directory / folder):
            shutil.rmtree(directory / folder, ignore_errors=True)
    for path in (directory / WORK).glob("*.*"):
        if path.is_file() and path.name != CHECKPOINT:
            path.unlink(missing_ok=True)
