"""The plan: everything that the tables of an atlas depend on, and nothing else.

The same plan gives the same bytes, however the work is cut up or interrupted. A part of a sharded run has the plan of
the whole. What is known only after the text has been read (its fingerprint) is added then.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mnemoscope.errors import OptionError, PlanDiffers
from mnemoscope.models import LanguageModel

SAMPLED_TOKENS = 200_000
"""Histogram and deviation see every batch until so many tokens ..."""
SAMPLED_EVERY = 16
"""... and then every batch whose number is a multiple of this."""
_SHUFFLED = 512
"""Batches are taken in random order within runs of this many, so that short sentences do not all come first."""
_COEFFICIENTS = 1 << 22
"""Coefficients of one layer and batch on a CPU: 16 MiB, which its allocator serves again instead of asking anew."""

_SETTLED_LATER = ("corpus_fingerprint", "removals")
"""Entries that may be open until the text has been read."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class MiningPlan:
    """Resolved options and fingerprints of one run; see the module's docstring."""

    model: str
    revision: str | None
    model_fingerprint: str
    corpus: str
    text_field: str
    validation: str | None
    split: str
    triggers: int
    per_sentence: str
    layers: tuple[int, ...]
    max_sentences: int | None
    max_tokens: int | None
    prefixes: int
    removals: int | str | None
    batch_tokens: int
    dtype: str
    device: str
    seed: int
    torch: str
    threads: int
    corpus_fingerprint: str | None = None

    def __post_init__(self) -> None:
        for name in ("triggers", "prefixes", "batch_tokens", "max_sentences", "max_tokens", "seed"):
            value = getattr(self, name)
            least = 0 if name in ("prefixes", "seed") else 1
            if value is not None and value < least:
                raise OptionError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
        if self.triggers > 30_000:
            raise OptionError(f"--triggers must be at most 30000, not {self.triggers}")
        if self.per_sentence not in ("1", "all"):
            raise OptionError(f"--per-sentence must be 1 or all, not {self.per_sentence!r}")

    def document(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        found = asdict(self)
        return found | {"layers": list(self.layers)}

    def hash(self) -> str:
        """The hash that every table of the atlas carries."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()

    def with_corpus(self, fingerprint: str, *, removals: int) -> "MiningPlan":
        """The plan once the text has been read; `removals` counts where no number of memories was asked for."""
        chosen = removals if self.removals is None else self.removals
        return replace(self, corpus_fingerprint=fingerprint, removals=chosen)

    def check_same(self, begun: dict[str, Any], directory: Path) -> None:
        """Raises PlanDiffers, naming each difference, unless `begun` is this plan; what is not known yet is none."""
        own = self.document()
        differences = [
            f"{name.replace('_', ' ')} was {begun.get(name)!r}, now {value!r}"
            for name, value in own.items()
            if begun.get(name) != value and not (name in _SETTLED_LATER and None in (value, begun.get(name)))
        ]
        if differences:
            raise PlanDiffers(
                f"{directory} was begun with another plan ({'; '.join(differences)}); "
                "use the old options, another folder, or --force to begin anew"
            )


def default_batch_tokens(model: LanguageModel) -> int:
    """Positions in a batch: a fixed function of sizes, dtype, device kind and its memory, never of timing."""
    widest = max(model.sizes.memories)
    if model.device.type == "cpu":
        return max(256, min(8192, _COEFFICIENTS // widest))
    memory = torch.cuda.get_device_properties(model.device).total_memory if model.device.type == "cuda" else 1 << 33
    room = (memory - 2 * model.sizes.parameters * model.dtype.itemsize) // 8
    return int(max(1024, min(65_536, 1 << (max(1, room // (16 * widest)).bit_length() - 1))))


def batch_order(count: int, seed: int) -> NDArray[np.int64]:
    """The order in which `count` batches are taken: shuffled within runs, the runs in corpus order."""
    generator = np.random.default_rng((seed, 2))
    runs = [start + generator.permutation(min(_SHUFFLED, count - start)) for start in range(0, count, _SHUFFLED)]
    return np.concatenate(runs) if runs else np.empty(0, np.int64)
