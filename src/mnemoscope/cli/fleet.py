"""What `mine` does when workers are asked for: as processes here, as Ray actors, or as jobs of SLURM."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from mnemoscope.cli.mined import summarise
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.mining_options import MiningOptions

HERE = "local"
"""The address of a Ray that is started by the command itself."""
_ADDRESS = re.compile(r"auto|local|ray://\S+|[\w.-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}")


@dataclass(frozen=True)
class Asked:
    """The options of `mine` that say who does it."""

    workers: str | None = None
    gpus_per_worker: int = 1
    ray: str | None = None
    prepare: bool = False
    launch: str | None = None
    print: bool = False
    mixed_devices: bool = False

    @property
    def count(self) -> int | None:
        """How many workers; None for as many as fit. Raises OptionError."""
        if self.workers in (None, "auto"):
            return None
        if re.fullmatch(r"\d{1,6}", str(self.workers)) and int(str(self.workers)) > 0:
            return int(str(self.workers))
        raise OptionError(f"--workers {self.workers!r} is not a number of workers; write --workers 4, or auto")


def name_ray(arguments: list[str]) -> list[str]:
    """The arguments with an address after every `--ray` that has none."""
    found: list[str] = []
    for place, word in enumerate(arguments):
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        bare = word == "--ray" and not _ADDRESS.fullmatch(following)
        found += ["--ray", HERE] if bare else [word]
    return found


def is_for_workers(out: Path, asked: Asked) -> bool:
    """Whether workers mine: some were asked for, or what lies in the folder was begun for some."""
    if asked != Asked():
        return True
    from mnemoscope.atlas.manifest import unfinished_plan

    begun = unfinished_plan(out)
    return begun is not None and bool(begun.get("work"))


def mine_with_workers(
    model: str, corpus: str, out: Path, options: MiningOptions, asked: Asked, *, json: bool
) -> None:
    """Mines with workers, or prepares or submits that, and says what came of it."""
    _check(asked)
    count = asked.count
    from mnemoscope.distributed.run import FleetOptions, mine_with_workers, prepare_run, usable_cores

    fleet = FleetOptions(
        workers=count, ray=asked.ray, gpus_per_worker=asked.gpus_per_worker, mixed_devices=asked.mixed_devices
    )
    if count is not None and asked.ray is None and not asked.prepare and count > (cores := usable_cores()):
        print(f"warning: {count} workers share {cores} cores; more workers than cores are no faster", file=sys.stderr)
    if asked.prepare:
        with reporting() as progress:
            settled = prepare_run(model, corpus, out, options, fleet, progress=progress)
        run = settled.run
        if json:
            emit({"atlas": str(out), "batches": run.batches, "leases": run.leases, "tokens": run.tokens,
                  "plan_hash": settled.plan.hash()})  # fmt: skip
            return
        print(f"{out} is prepared: {run.tokens:,} tokens in {run.batches:,} batches, {run.leases:,} leases")
        print(f"next: mnemoscope worker {out}  (as many as you like, on machines that share the folder)")
        print(f"      mnemoscope mine {model} {corpus} --out {out} ...  (the same options: puts it together)")
        return
    with reporting() as progress:
        made = mine_with_workers(model, corpus, out, options, fleet, progress=progress)
    summarise(made, json=json)


def _check(asked: Asked) -> None:
    if asked.launch not in (None, "slurm"):
        raise OptionError(f"--launch {asked.launch!r} is not known; write --launch slurm")
    if asked.print and asked.launch is None:
        raise OptionError("--print prints the jobs of --launch slurm; give that, too")
    if asked.gpus_per_worker < 0:
        raise OptionError(f"--gpus-per-worker {asked.gpus_per_worker} is impossible; it must be 0 or more")
    if asked.prepare and (asked.ray is not None or asked.launch is not None):
        raise OptionError("--prepare only prepares; leave out --ray and --launch")
    if asked.ray is not None and asked.launch is not None:
        raise OptionError("--ray and --launch start workers in different ways; give one of them")
