"""`mine` with workers: as local processes, as Ray actors, or as SLURM jobs."""

import os
import re
import sys
from pathlib import Path

from mnemoscope.cli.mined import summarise
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import arguments_given, emit
from mnemoscope.foundation.cores import usable_cores
from mnemoscope.foundation.options.fleet_options import RAY_HERE, FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions

_ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.-]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


def name_ray(arguments: list[str]) -> list[str]:
    """The arguments with an address after every `--ray` without one."""
    words: list[str] = []
    for place, word in enumerate(arguments):
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        bare = word == "--ray" and not _ADDRESS.fullmatch(following)
        words += ["--ray", RAY_HERE] if bare else [word]
    return words


def is_for_workers(out: Path, asked: FleetOptions) -> bool:
    """Whether workers mine: options ask for them, or the folder's unfinished run uses them."""
    if asked != FleetOptions():
        return True
    from mnemoscope.atlas.manifest import unfinished_plan, work_of

    return work_of(unfinished_plan(out)) is not None


def mine_with_fleet(
    model: str, corpus: str, out: Path, options: MiningOptions, asked: FleetOptions, *, json: bool
) -> None:
    count = asked.count
    from mnemoscope.cluster.run import mine_with_workers
    from mnemoscope.cluster.shared_run import SharedRun

    if asked.launch is not None:
        _launch(out, options, asked, json=json)
        return
    if count is not None and asked.ray is None and not asked.prepare and count > (cores := len(usable_cores())):
        print(f"warning: {count} workers share {cores} cores; more workers than cores are no faster", file=sys.stderr)
    if asked.prepare:
        with reporting(events=json) as progress:
            mine_with_workers(model, corpus, out, options, asked, progress=progress)
        plan, run = SharedRun.read(out)
        if json:
            emit(
                {
                    "atlas": str(out),
                    "batches": run.batches,
                    "leases": run.leases,
                    "tokens": run.tokens,
                    "plan_hash": plan.hash(),
                }
            )
            return
        print(f"{out} is prepared: {run.tokens:,} tokens in {run.batches:,} batches, {run.leases:,} leases")
        print(f"next: mnemoscope worker {out}  (as many as you like, on machines that share the folder)")
        print(f"      mnemoscope mine {model} {corpus} --out {out} ...  (the same options: puts it together)")
        return
    with reporting(events=json) as progress:
        made = mine_with_workers(model, corpus, out, options, asked, progress=progress)
    summarise(made, json=json)


def _launch(out: Path, options: MiningOptions, fleet: FleetOptions, *, json: bool) -> None:
    from mnemoscope.cluster.launchers import slurm

    stated = re.match(r"\s*([1-9][0-9]*)", os.environ.get("OMP_NUM_THREADS", ""))  # a list has one for each level
    threads = int(stated[1]) if stated else min(8, len(usable_cores()))
    gpus = int(options.device.startswith("cuda")) if fleet.gpus_per_worker is None else fleet.gpus_per_worker
    words = arguments_given()
    jobs = slurm.scripts(
        words[words.index("mine") :],
        out,
        workers=fleet.count or slurm.WORKERS,
        threads=threads,
        gpus=gpus,
        worker_options=options.opening.words(),
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
