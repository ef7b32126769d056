"""What all workers of a run read in the atlas's folder: `unfinished.json` has the plan and, under `work`, the rest,
settled once the text had been read.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mnemoscope.atlas.manifest import WORK, shared_run_of
from mnemoscope.corpus import TokenizedCorpus, open_prepared
from mnemoscope.errors import PartsDiffer, PlanDiffers
from mnemoscope.foundation.options.mining_options import UNRELEASED
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.text.ranges import Range

_COPY = f"{WORK}/text/copy.json"

LEAST_LEASES, MOST_LEASES = 256, 10_000
"""A run has more leases than the first, if it has enough batches, and fewer than the second."""
_LEASE_SECONDS = 60
_NOMINAL = {"cpu": 4e10, "cuda": 2e14}
"""Operations per second of one thread, and of one card, about."""


@dataclass(frozen=True)
class SharedRun:
    """The settings of a run beside its plan."""

    batches: int
    lease_batches: int
    """Batches of a lease; the last one may have fewer."""
    tokens: int
    text: str
    """The sha256 of the file that describes the tokenized text."""
    checkpoint_every: float
    patience: float
    """Seconds of silence after which a worker counts as dead."""
    mixed_devices: bool

    @classmethod
    def read(cls, directory: Path) -> "tuple[MiningPlan, Self]":
        """The plan and the settings of the run in this folder."""
        begun, work = shared_run_of(directory)
        try:
            return MiningPlan.from_document(begun["plan"], directory), cls(**work)
        except TypeError as error:
            raise PlanDiffers(f"{directory} {UNRELEASED} with --force") from error

    @property
    def leases(self) -> int:
        return -(-self.batches // self.lease_batches)

    def lease_range(self, number: int) -> Range:
        first = number * self.lease_batches
        return first, min(first + self.lease_batches, self.batches)

    def open_text(self, directory: Path, plan: MiningPlan) -> TokenizedCorpus:
        """The tokenized text."""
        if hash_of_text(directory) != self.text:
            raise PartsDiffer(
                f"the text in {directory} is not the one that this run was prepared with; copy the prepared folder"
                " whole, or prepare it again with --force"
            )
        return open_prepared(directory / WORK / "text", validation=plan.validation is not None)


def hash_of_text(directory: Path) -> str:
    """Empty if there is no text."""
    try:
        return hashlib.sha256((directory / _COPY).read_bytes()).hexdigest()
    except OSError:
        return ""


def choose_lease(batches: int, *, tokens: int, parameters: int, device: str, threads: int) -> int:
    """Batches per lease: about a minute's work of a worker, estimated without measuring."""
    each = max(1.0, tokens / max(1, batches)) * 2.0 * max(1, parameters)
    rate = _NOMINAL.get(device, _NOMINAL["cpu"]) * (threads if device == "cpu" else 1)
    minute = int(_LEASE_SECONDS * rate / each)
    return max(1, -(-batches // MOST_LEASES), min(minute, batches // LEAST_LEASES))
