"""The plan: everything that the tables of an atlas depend on, and nothing else.

The same plan gives the same bytes, however the work is cut up or interrupted. Parts have the plan of the whole. What
only the texts tell (their fingerprints) is added after reading them.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mnemoscope.errors import PlanDiffers
from mnemoscope.foundation.options.mining_options import (
    RULES,
    TRIGGERS,
    TRIGGERS_OF_EXPERTS,
    UNRELEASED,
    MiningOptions,
    choose_layers,
    parse_removals,
)
from mnemoscope.models import LanguageModel, kernels_chosen
from mnemoscope.models.forward.batches import default_batch_tokens

LIBRARIES = ("torch", "transformers", "tokenizers", "sentencex")
"""Libraries that affect numbers; a plan has the version of each under its name."""

SAMPLED_TOKENS = 200_000
"""Histogram and deviation use every batch until so many tokens ..."""
SAMPLED_EVERY = 16
"""... and then every batch whose number is a multiple of this."""
_SHUFFLED = 512
"""Batches are shuffled within runs of so many, so that short sentences do not all come first."""

_SHOWN = ("model", "adapter", "tokenizer", "corpus", "validation")
"""Display names; fingerprints identify these things."""
_SETTLED_LATER = ("corpus_fingerprint", "validation_fingerprint", "removals")
"""Entries that are open until the text has been read."""


@dataclass(frozen=True)
class MiningPlan:
    model: str
    revision: str | None
    adapter: str | None
    tokenizer: str | None
    dequantize: bool
    model_fingerprint: str
    corpus: str
    text_field: str
    ids_field: str | None
    validation: str | None
    split: str
    triggers: int
    per_sentence: str
    layers: tuple[int, ...]
    max_sentences: int | None
    max_tokens: int | None
    prefixes: int
    removals: int | str | None
    neighbours: int
    batch_tokens: int
    dtype: str
    device: str
    seed: int
    attention: str
    threads: int
    torch: str
    transformers: str
    tokenizers: str
    sentencex: str
    beginning: str | None
    sample: float | None
    skip_bad_rows: int
    skip_special: bool
    token_activations: bool
    random: bool
    kernels: str | None
    """Environment variables that choose among kernels (`kernels_chosen`)."""
    rules: int = RULES
    corpus_fingerprint: str | None = None
    validation_fingerprint: str | None = None

    def __post_init__(self) -> None:
        MiningOptions.check(vars(self))

    @classmethod
    def derive(
        cls, options: MiningOptions, model: LanguageModel, *, corpus: str, validation: str | None
    ) -> "MiningPlan":
        """The plan of a run; `corpus` and `validation` are the names of the texts."""
        stated: dict[str, Any] = {name: getattr(options, name) for name in MiningOptions.planned_names()}
        settled = {
            "validation": validation,
            "split": options.cut,
            "triggers": default_triggers(model) if options.triggers is None else options.triggers,
            "per_sentence": str(options.per_sentence),
            "layers": choose_layers(options.layers, model.sizes.layers),
            "removals": None if options.removals is None else parse_removals(options.removals),
            "batch_tokens": default_batch_tokens(model) if options.batch_tokens is None else options.batch_tokens,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
        }
        return cls(
            model=options.name or model.name,
            **model.opening.plan_entries(),
            model_fingerprint=model.fingerprint,
            corpus=options.text_name or corpus,
            attention=model.attention,
            threads=torch.get_num_threads(),
            kernels=kernels_chosen(),
            **stated | settled | library_versions(),
        )

    @classmethod
    def from_document(cls, stored: Mapping[str, Any], where: Path) -> "MiningPlan":
        """The inverse of `document`."""
        if stored.keys() != {each.name for each in fields(cls)} or stored["rules"] != RULES:
            raise PlanDiffers(f"{where} {UNRELEASED}")
        return cls(**{**stored, "layers": tuple(stored["layers"])})

    def document(self) -> dict[str, Any]:
        """The plan as JSON."""
        return asdict(self) | {"layers": list(self.layers)}

    def hash(self) -> str:
        """The hash that every table of the atlas carries, without display names."""
        hashed = {name: value for name, value in self.document().items() if name not in _SHOWN}
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()

    @property
    def random_seed(self) -> int | None:
        """The seed by which firings are drawn at random; None if they are not."""
        return self.seed if self.random else None

    @property
    def spec(self) -> str:
        """The name of the model with its adapter."""
        return self.model if self.adapter is None else f"{self.model}+{self.adapter}"

    def with_versions_of(self, begun: Mapping[str, Any]) -> "MiningPlan":
        """The same plan with the library versions that `begun` states."""
        stated: dict[str, Any] = {name: begun[name] for name in LIBRARIES if name in begun}
        return replace(self, **stated)

    def difference(self, begun: Mapping[str, Any]) -> tuple[str, str] | None:
        """The first differing entries and advice; None if none differs. Entries not settled yet are ignored."""
        other = {name: value for name, value in self.document().items() if begun.get(name) != value}
        changed = {
            name
            for name, value in other.items()
            if name not in _SHOWN and not (name in _SETTLED_LATER and None in (value, begun.get(name)))
        }
        if "validation" in other and None in (other["validation"], begun.get("validation")):
            changed.add("validation")
        if not changed:
            return None
        told = [name for name in other if name in (*changed, *_SHOWN)]
        said = "; ".join(f"{name.replace('_', ' ')} was {begun.get(name)!r}, now {other[name]!r}" for name in told)
        only_versions = changed <= set(LIBRARIES)
        advice = "those versions, --accept-versions to go on with these" if only_versions else "the old options"
        return said, advice


def all_versions(begun: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The distinct library versions of an atlas: those of earlier runs or parts, and those here."""
    every = [*(each for document in begun for each in document.get("versions") or []), library_versions()]
    return [dict(each) for number, each in enumerate(every) if each not in every[:number]]


def library_versions() -> dict[str, str]:
    return {"torch": torch.__version__} | {name: version(name) for name in LIBRARIES if name != "torch"}


def default_triggers(model: LanguageModel) -> int:
    return TRIGGERS_OF_EXPERTS if model.numberings else TRIGGERS


def batch_order(count: int, seed: int) -> NDArray[np.int64]:
    """The order in which `count` batches are taken: shuffled within runs, the runs in corpus order."""
    generator = np.random.default_rng((seed, 2))
    runs = [start + generator.permutation(min(_SHUFFLED, count - start)) for start in range(0, count, _SHUFFLED)]
    return np.concatenate(runs) if runs else np.empty(0, np.int64)
