"""A run that several processes work on: what they all read in the atlas's folder.

`unfinished.json` has the plan and, under `work`, the rest: settled once, when the text had been read.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from mnemoscope.atlas.manifest import WORK, unfinished_plan, work_of
from mnemoscope.corpus import TokenizedCorpus, open_prepared
from mnemoscope.errors import AtlasNotFound, PartsDiffer, PlanDiffers
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.text.ranges import Range

_COPY = f"{WORK}/text/copy.json"

LEAST_LEASES, MOST_LEASES = 256, 10_000
"""A run is cut into more leases than the first, if it has so many batches, and into fewer than the second."""
_LEASE_SECONDS = 60
_NOMINAL = {"cpu": 4e10, "cuda": 2e14}
"""Operations a second of one thread, and of one card: what a minute of work is, about."""


@dataclass(frozen=True)
class SharedRun:
    """What is settled of a run beside its plan."""

    batches: int
    lease_batches: int
    """How many batches a lease has; the last one may have fewer."""
    tokens: int
    text: str
    """The sha256 of the file that describes the tokenized text."""
    pieces: int
    """Tasks of a pass that is cut into any number."""
    checkpoint_every: float
    patience: float
    """Seconds of silence after which a worker counts as dead."""
    mixed_devices: bool

    @classmethod
    def read(cls, directory: Path) -> "tuple[MiningPlan, Self]":
        """The plan and the rest of the run in this folder; raises AtlasNotFound, PlanDiffers."""
        begun = unfinished_plan(directory)
        work = work_of(begun)
        if begun is None or work is None:
            raise AtlasNotFound(
                f"{directory} holds no run for workers; begin one with `mnemoscope mine MODEL CORPUS --out"
                f" {directory} --prepare`"
            )
        try:
            return MiningPlan.from_document(begun["plan"], directory), cls(**work)
        except TypeError as error:
            raise PlanDiffers(
                f"{directory} was begun by another version of mnemoscope; go on with that one, or --force"
            ) from error

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @property
    def leases(self) -> int:
        """How many leases the text is cut into."""
        return -(-self.batches // self.lease_batches)

    def lease_range(self, number: int) -> Range:
        """The batches of a lease."""
        first = number * self.lease_batches
        return first, min(first + self.lease_batches, self.batches)

    def open_text(self, directory: Path, plan: MiningPlan) -> TokenizedCorpus:
        """The tokenized text of the plan; raises PartsDiffer where it is not the one that the run was begun with."""
        if hash_of_text(directory) != self.text:
            raise PartsDiffer(
                f"the text in {directory} is not the one that this run was prepared with; copy the prepared folder"
                " whole, or prepare it again with --force"
            )
        return open_prepared(directory / WORK / "text", validation=plan.validation is not None)


def hash_of_text(directory: Path) -> str:
    """The sha256 of the file that describes the tokenized text; empty where there is none."""
    try:
        return hashlib.sha256((directory / _COPY).read_bytes()).hexdigest()
    except OSError:
        return ""


def choose_lease(batches: int, *, tokens: int, parameters: int, device: str, threads: int) -> int:
    """How many batches a lease has: about a minute's work of a worker, as far as can be told without measuring."""
    each = max(1.0, tokens / max(1, batches)) * 2.0 * max(1, parameters)
    rate = _NOMINAL.get(device, _NOMINAL["cpu"]) * (threads if device == "cpu" else 1)
    minute = int(_LEASE_SECONDS * rate / each)
    return max(1, -(-batches // MOST_LEASES), min(minute, batches // LEAST_LEASES))
