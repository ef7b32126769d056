"""`mnemoscope mine`: makes an atlas from a model and a text, alone or with workers (processes, Ray actors, SLURM jobs);
`mnemoscope merge`: joins the parts of one plan.

Checks that need no loading come first. At the end both print the atlas's path, its contents and the next commands.
"""

import os
import re
import sys
from pathlib import Path

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.mined import summarise
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import arguments_given, emit
from mnemoscope.errors import AtlasExists
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option
from mnemoscope.foundation.options.fleet_options import ALONE, FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.options.model_options import (
    ModelArgument,
    ModelOptions,
    check_names,
    display_name,
    full_name,
)
from mnemoscope.foundation.processes import usable_cores


class MineOptions(ModelArgument):
    corpus: str = option(
        help="builtin:pydocs, a .txt, .jsonl (.ndjson, .json) or .parquet file (also .gz, .xz, .zst) or a quoted glob,"
        " or hub:DATASET[:CONFIG[:SPLIT]].",
        argument=True,
    )
    out: Path = option(help="The folder to make.", metavar="ATLAS")
    mining: MiningOptions
    fleet: FleetOptions


def mine(options: MineOptions, *, json: bool) -> None:
    """Mine a text for a model's memories; makes an atlas.

    Finds the triggers, the activity and the value of every feed-forward memory. Continues by itself if ATLAS is
    unfinished and the plan is the same; says so if it is finished. Ctrl-C saves; run it again to go on.

    Example: mnemoscope mine gpt2 wiki.txt --out atlas
    """
    model, corpus, out, mining, fleet = options.model, options.corpus, options.out, options.mining, options.fleet
    if fleet.launch is not None:  # its jobs look on their own machine
        _launch(options, json=json)
        return
    check_names(model, mining.opening)
    _check_finished(out, mining, model, corpus)
    for text in (corpus, mining.validation):
        arg.check_text(text, mining)
    from mnemoscope.atlas.manifest import unfinished_plan

    if fleet == ALONE and ((unfinished_plan(out) or {}).get("work") or {}).get("fleet"):
        fleet = FleetOptions(workers="auto")  # as the folder's run was begun
    elif fleet.ray is None and not fleet.prepare and (fleet.count or 0) > (cores := len(usable_cores())):
        print(f"warning: {fleet.count} workers share {cores} cores; more workers are no faster", file=sys.stderr)
    from mnemoscope.mining import run_mining

    with reporting(events=json and fleet != ALONE) as progress:
        made = run_mining(model, corpus, out, mining, fleet, progress=progress)
    if fleet.prepare:
        from mnemoscope.runs.run import Run

        run = Run.read(out)
        size = {"batches": run.batches, "leases": run.leases, "tokens": run.tokens}
        if json:
            emit({"atlas": str(out), **size, "plan_hash": run.plan.hash()})
            return
        print(f"{out} is prepared: {run.tokens:,} tokens in {run.batches:,} batches, {run.leases:,} leases")
        print(f"next: mnemoscope worker {out}  (as many as you like, on machines that share the folder)")
        print(f"      mnemoscope mine {model} {corpus} --out {out} ...  (the same options: puts it together)")
        return
    summarise(made, json=json)


def _launch(options: MineOptions, *, json: bool) -> None:
    out, fleet = options.out, options.fleet
    from mnemoscope.runs.launch import slurm

    stated = re.match(r"\s*([1-9][0-9]*)", os.environ.get("OMP_NUM_THREADS", ""))  # a list has one for each level
    threads = int(stated[1]) if stated else min(8, len(usable_cores()))
    gpus = int(options.mining.device.startswith("cuda")) if fleet.gpus_per_worker is None else fleet.gpus_per_worker
    words = arguments_given()
    jobs = slurm.scripts(
        words[words.index("mine") :],
        out,
        workers=fleet.count or slurm.WORKERS,
        threads=threads,
        gpus=gpus,
        worker_options=options.mining.opening.words(),
    )
    if fleet.print:
        print(slurm.document(jobs), end="")
        return
    numbers = slurm.submit(jobs)
    if json:
        emit({"atlas": str(out), "jobs": dict(zip([job.role for job in jobs], numbers, strict=True))})
        return
    submitted = ", ".join(f"{job.role} {number}" for job, number in zip(jobs, numbers, strict=True))
    print(f"submitted: {submitted}; squeue --me shows them, their output is in {slurm.log_folder(out)}")
    print(f"next: mnemoscope status {out}")


def _check_finished(out: Path, options: MiningOptions, model: str, corpus: str) -> None:
    """Raises AtlasExists if the folder holds something that is not an atlas, or is one of another text or model."""
    if arg.check_folder(out) != "finished" or options.force:
        return
    from mnemoscope.atlas.manifest import plan_of

    plan = plan_of(out)
    shown = Path(model).stem if model.endswith(".gguf") else display_name(full_name(model))
    names = {"corpus": options.text_name or display_name(corpus, of_text=True), "model": options.name or shown}
    if names != {name: plan.get(name) for name in names}:
        raise AtlasExists(f"{out} is finished already; choose another folder, or --force to mine it again")


class MergeOptions(DeclaredOptions):
    out: Path = option(help="The folder of the new atlas.", argument=True)
    parts: list[Path] = option(help="Every part of one plan.", metavar="PART...", argument=True)
    model: str | None = option(None, "The plan's model, if it has moved.")
    opening: ModelOptions
    accept_versions: bool = like(MiningOptions, "accept_versions")
    allow_mixed_devices: bool = option(False, "Join parts of different kinds of processors or cards, too.")
    force: bool = option(False, "Replace a finished atlas or one with other options.")


def merge(options: MergeOptions, *, json: bool) -> None:
    """Join the parts of one plan into one atlas.

    Parts are made by `mine --part I/N`. Every table is byte-identical to that of a single run.
    Parts of different plans, and a missing or repeated part, are refused by name. Ctrl-C saves; run it again to go on.
    The model is opened as in the plan, except for the options given here.

    Example: mnemoscope merge atlas part-1 part-2 part-3
    """
    arg.check_folder(options.out)
    arg.check_atlases(*options.parts)
    from mnemoscope import mining

    with reporting() as progress:
        made = mining.merge(options.out, options.parts, progress=progress, **options.taken_by(mining.merge))
    summarise(Path(made), json=json)
