"""The plan: everything that the tables of an atlas depend on, and nothing else.

The same plan gives the same bytes, however the work is cut up or interrupted. Parts have the plan of the whole. What
only the texts tell (their fingerprints, and the default number of removals) is added after reading them. A plan is read
without torch, and made with it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.errors import ModelDiffers, OptionError, PlanDiffers
from mnemoscope.foundation.memory_names import most_experts
from mnemoscope.foundation.options.mining_options import (
    RULES,
    TRIGGERS,
    TRIGGERS_OF_EXPERTS,
    UNRELEASED,
    MiningOptions,
    choose_layers,
    parse_removals,
)
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.foundation.words import KEYS_ONLY

if TYPE_CHECKING:
    from mnemoscope.corpus import TokenizedCorpus
    from mnemoscope.models import LanguageModel

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

TRIGGERS_ASKED = 50
"""Positive triggers of a memory that the removal pass asks about."""
OWN = 50_000
"""Memories of a model that reads sentences whole whose target is asked with its token masked."""
MOST_MEMORIES = 100
"""Most memories per layer of the default."""
LEAST_OF_LAYER, LEAST_OF_ALL = 2, 60
"""Its least: memories per layer, and in all layers together, which is 3,000 triggers."""
_DEPTH = 0.6
"""The mean share of the model that a run of the removal pass goes through."""


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
    source_field: str | None
    validation: str | None
    split: str
    triggers: int
    per_sentence: str
    layers: tuple[int, ...]
    max_sentences: int | None
    max_tokens: int | None
    prefixes: int
    removals: int | str | None
    own: int | str | None
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
    side: str | None
    sample: float | None
    skip_bad_rows: int
    skip_special: bool
    head: str
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
        cls, options: MiningOptions, model: "LanguageModel", *, corpus: str, validation: str | None = None
    ) -> "MiningPlan":
        """The plan of a run; `corpus` and `validation` are the names of the texts."""
        import torch

        from mnemoscope.models import kernels_chosen
        from mnemoscope.models.forward.batches import default_batch_tokens

        stated: dict[str, Any] = {name: getattr(options, name) for name in MiningOptions.planned_names()}
        settled = {
            "validation": validation,
            "split": options.cut,
            "triggers": default_triggers(model) if options.triggers is None else options.triggers,
            "per_sentence": str(options.per_sentence),
            "layers": choose_layers(options.layers, model.sizes.layers),
            "removals": None if options.removals is None else parse_removals(options.removals),
            "own": _own(options, model),
            "head": model.anatomy.head_kind,
            "batch_tokens": default_batch_tokens(model) if options.batch_tokens is None else options.batch_tokens,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
        }
        return cls(
            model=options.name or model.name,
            **{name: getattr(model.opening.for_display(), name) for name in ModelOptions.planned_names()},
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
        """The name of the model with its adapter and its half."""
        return ModelOptions(adapter=self.adapter, side=self.side).spec_of(self.model)

    def with_versions_of(self, begun: Mapping[str, Any]) -> "MiningPlan":
        """The same plan with the library versions that `begun` states."""
        stated: dict[str, Any] = {name: begun[name] for name in LIBRARIES if name in begun}
        return replace(self, **stated)

    def with_texts(self, copy: "TokenizedCorpus", begun: Mapping[str, Any] | None) -> "MiningPlan":
        """The plan with what only the texts tell; `begun` is a plan in whose run it goes on."""
        sentences, tokens = int(copy.counts["mined_sentences"]), int(copy.counts["mined_tokens"])
        default = default_removals(mined_tokens=tokens, mined_sentences=sentences, layers=len(self.layers))
        removals = self.removals if begun is None or self.removals is not None else begun.get("removals")
        return replace(
            self,
            corpus_fingerprint=copy.fingerprint,
            validation_fingerprint=getattr(copy.validation, "fingerprint", None),
            removals=default if removals is None else removals,
        )

    def difference(
        self, stored: Mapping[str, Any], part: tuple[int, int] | None = None, counts: Mapping[str, Any] = {}
    ) -> tuple[str, str] | None:
        """The differences from the `plan`, `part` and `counts` of the text that a folder has `stored`, and advice; None
        if there are none, or nothing is stored. Entries not settled yet are ignored.
        """
        if not stored:
            return None
        begun, was = stored["plan"], stored["part"]
        if begun.get("rules") != RULES:
            return UNRELEASED, ""
        other = {name: value for name, value in self.document().items() if begun.get(name) != value}
        changed = {
            name
            for name, value in other.items()
            if name not in _SHOWN and not (name in _SETTLED_LATER and None in (value, begun.get(name)))
        }
        if "validation" in other and None in (other["validation"], begun.get("validation")):
            changed.add("validation")
        told = [name for name in other if name in (*changed, *_SHOWN)] if changed else []
        said = [f"{name.replace('_', ' ')} was {begun.get(name)!r}, now {other[name]!r}" for name in told]
        if (was and tuple(was)) != part:
            said.append(f"part was {was and tuple(was)}, now {part}")
        if not said:  # the same distinct sentences
            known = stored.get("counts", {})
            again = [name for name, now in counts.items() if isinstance(now, int) and now != known.get(name, now)]
            said = [f"the text's {name.replace('_', ' ')} changed" for name in again]
        only_versions = bool(changed) and changed <= set(LIBRARIES)
        advice = "those versions, --accept-versions to go on with these" if only_versions else "the old options"
        return ("; ".join(said), advice) if said else None


def all_versions(begun: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The distinct library versions of an atlas: those of earlier runs or parts, and those here."""
    every = [*(each for document in begun for each in document.get("versions") or []), library_versions()]
    return [dict(each) for number, each in enumerate(every) if each not in every[:number]]


def library_versions() -> dict[str, str]:
    import torch

    return {"torch": torch.__version__} | {name: version(name) for name in LIBRARIES if name != "torch"}


def load_planned(
    plan: MiningPlan,
    directory: Path,
    model: "LanguageModel | str | None",
    opening: ModelOptions,
    *,
    device: str | None = None,
    versions: Sequence[Mapping[str, str]] | None = None,
    progress: Progress = ignore_progress,
) -> "LanguageModel":
    """The model of the plan in a folder, with the plan's dtype and threads; `model` and `device` are by default the
    plan's. With `versions` of libraries, of which this process must have one, it computes what the plan's process did.
    Raises ModelDiffers, and what loading raises.
    """
    from mnemoscope.models import LanguageModel, kernels_chosen, load_for_ids, load_model, set_threads

    set_threads(plan.threads)
    if not isinstance(model, LanguageModel):
        from mnemoscope.atlas.manifest import open_as_mined  # needs pyarrow; speeds are measured without it

        name, opening = open_as_mined(directory, model, opening)
        progress("loading", 0, None, name)
        load = load_model if plan.ids_field is None else load_for_ids
        model = load(name, dtype=plan.dtype, device=device or plan.device, **opening.keywords())
    here: dict[str, Any] = {"model_fingerprint": model.fingerprint, "dtype": str(model.dtype).removeprefix("torch.")}
    if versions is not None:
        own, libraries = {"device": model.device.type, "attention": model.attention}, library_versions()
        here |= own | {"kernels": kernels_chosen()} | ({} if libraries in versions else libraries)
    others = {name: (getattr(plan, name), value) for name, value in here.items() if value != getattr(plan, name)}
    if others:
        said = [f"{name.replace('_', ' ')} {was!s:.16} (here {now!s:.16})" for name, (was, now) in others.items()]
        raise ModelDiffers(
            f"{directory} is mined from {plan.spec} with {', '.join(said)}; use that model, format and libraries,"
            f" not {model.spec} as it is here"
        )
    return model


def model_facts(model: "LanguageModel") -> dict[str, Any]:
    """The entry of a model in the manifest: origin, kind, sizes and proof."""
    routed, shared = most_experts(model.numberings.values())
    experts = [numbering.document() for numbering in model.numberings.values()]
    rest = {str(number): name for number, name in model.anatomy.without.items()}
    return {
        "spec": model.spec,
        "hub": model.hub,
        "revision": model.revision,
        "fingerprint": model.fingerprint,
        "family": model.family,
        "block": model.block,
        "gated": model.gated,
        "activation": model.activation,
        "negative_coefficients": model.has_negative,
        "final_norm": model.final_norm,
        "values": "probed" if model.probed else "read",
        "head": model.anatomy.head_kind,
        **({"experts": routed, "shared_experts": shared} if experts else {}),
        **({"layer_blocks": list(model.anatomy.blocks), "other_blocks": rest} if rest else {}),
        "sizes": {
            **vars(model.sizes),
            "memories": list(model.sizes.memories),
            **({"experts": experts} if experts else {}),
        },
        "beginning": {"token": model.beginning.token, "kind": model.beginning.kind},
        "reading": asdict(model.reading),
        **({} if model.eager else {"attention_weights": "unknown"}),
        "proof": {name: getattr(model.proof, name) for name in ("residual", "ablation", "keys", "scores")},
    }


def _own(options: MiningOptions, model: "LanguageModel") -> int | str | None:
    """The memories whose trigger is read with its token masked; None in a causal model, and without values."""
    if model.reading.causal and options.own is not None:
        raise OptionError("--own is of models that read sentences whole; this one reads from left to right")
    if model.keys_only and options.own is not None:
        raise OptionError(f"--own is of models with values; {KEYS_ONLY}")
    if model.reading.causal or model.keys_only:
        return None
    return parse_removals(OWN if options.own is None else options.own)


def default_triggers(model: "LanguageModel") -> int:
    return TRIGGERS_OF_EXPERTS if model.numberings else TRIGGERS


def default_removals(*, mined_tokens: int, mined_sentences: int, layers: int) -> int:
    """Memories per layer that keep the removal pass under half of the mining, from the size of the text alone."""
    each = removal_work(1, mean_length=mined_tokens / max(1, mined_sentences), layers=layers)
    least = max(LEAST_OF_LAYER, -(-LEAST_OF_ALL // layers))
    return int(min(MOST_MEMORIES, max(least, (mined_tokens + mined_sentences) / 2 // each)))


def removal_work(memories: float, *, mean_length: float, layers: int) -> float:
    """Tokens through the whole model that so many memories per layer take, about."""
    return memories * TRIGGERS_ASKED * 3 * (mean_length / 2 + 1) * _DEPTH * max(1, layers)


def batch_order(count: int, seed: int) -> NDArray[np.int64]:
    """The order in which `count` batches are taken: shuffled within runs, the runs in corpus order."""
    generator = np.random.default_rng((seed, 2))
    runs = [start + generator.permutation(min(_SHUFFLED, count - start)) for start in range(0, count, _SHUFFLED)]
    return np.concatenate(runs) if runs else np.empty(0, np.int64)
