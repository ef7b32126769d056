"""How many workers mine, and where: as processes of this machine, on a Ray cluster, or as jobs of SLURM."""

import re

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, option

RAY_HERE = "local"
"""The address of a Ray instance that is started by this process."""


def _check_workers(workers: str | int) -> None:
    if workers != "auto" and not re.fullmatch(r"0*[1-9][0-9]{0,5}", str(workers)):
        raise OptionError(f"--workers {workers!r} is not a number of workers; write --workers 4, or auto")


class FleetOptions(DeclaredOptions):
    """The workers of a run; all at their defaults: one process mines."""

    workers: str | int | None = option(
        None, "Mine with so many processes; auto: one for every card.", metavar="N|auto", check=_check_workers
    )
    gpus_per_worker: int | None = option(None, "Cards of every worker.", least=0, instead="1 where they run on cards")
    ray: str | None = option(None, "Mine with Ray actors, here or on the cluster of that address.", metavar="[ADDRESS]")
    prepare: bool = option(False, "Only read the text and write the plan, for `mnemoscope worker`.")
    launch: str | None = option(None, "Submit jobs that prepare, mine and merge.", choices=("slurm",))
    print: bool = option(False, "With --launch: print the jobs, submit nothing.")
    allow_mixed_devices: bool = option(False, "Allow different kinds of cards: equal to tolerance.")
    patience: float = 60.0
    """Seconds of silence after which a worker counts as dead; no option of the command line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.print and self.launch is None:
            raise OptionError("--print prints the jobs of --launch slurm; give that, too")
        if self.prepare and (self.ray is not None or self.launch is not None):
            raise OptionError("--prepare only prepares; leave out --ray and --launch")
        if self.ray is not None and self.launch is not None:
            raise OptionError("--ray and --launch start workers in different ways; give one of them")

    @property
    def count(self) -> int | None:
        """How many workers; None: one for every card, or on a CPU for every eight cores."""
        return None if self.workers in (None, "auto") else int(self.workers)

    @property
    def cards(self) -> int:
        """Cards of every worker that runs on cards."""
        return 1 if self.gpus_per_worker is None else self.gpus_per_worker
