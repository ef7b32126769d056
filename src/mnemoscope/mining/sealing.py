"""The end of a run: what the manifest says, the seal, and the patterns, which are made of the sealed atlas.

Needs no model, only what is to be said of it (`model_facts`): who seals an atlas that workers have made has none.
"""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.folder import remove_work
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.manifest import RUN, mined_from, seal, table_files
from mnemoscope.atlas.schema import place
from mnemoscope.atlas.tables import patterns_command
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation.files import file_entry, write_json
from mnemoscope.foundation.memory_names import most_experts
from mnemoscope.foundation.progress import Progress, StopSignal, interruption
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext
from mnemoscope.models import LanguageModel
from mnemoscope.patterns import join_patterns, write_patterns

_OF_PATTERNS = ("vocabulary", "background", "sentences", "triggers")
"""The tables in which patterns are found."""


def seal_atlas(
    context: RunContext,
    facts: Mapping[str, Any],
    plan: MiningPlan,
    halved: Sequence[int],
    *,
    counts: Mapping[str, Any],
    versions: Sequence[Mapping[str, str]],
    part: tuple[int, int] | None = None,
    questions: Mapping[str, Any] | None = None,
    equality: Mapping[str, Any] | None = None,
    keep_work: bool = False,
) -> None:
    """Makes an atlas, or a part, of a folder that holds all its tables but the patterns; raises StoreFailed.

    `facts` are those of `model_facts`, as they are or read from JSON; `halved` the batches that were computed in
    halves; `counts` those of the text; `versions` as of `all_versions`; `questions` what was asked.
    """
    directory = context.directory
    write_json(directory / RUN, {  # which no hash covers
        "seconds": {stage: round(seconds, 3) for stage, seconds in context.seconds.items()},
        "host": platform.node(),
        "machine": platform.machine(),
        "paths": mined_from(directory),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    document = manifest_of(
        facts, plan, halved, counts=counts, versions=versions, part=part, questions=questions, equality=equality
    )
    seal(directory, document)
    if not keep_work:
        remove_work(directory)


def add_patterns(directory: Path, progress: Progress, *, found: bool = False) -> None:
    """Makes the patterns of the atlas, which is sealed by now, or puts those together that were `found` of each layer.

    Raises Interrupted after Ctrl-C, StoreFailed, AtlasUnfinished where a layer's were not found.
    """
    left = f"{directory} is finished but for its patterns, which {patterns_command(directory)} makes"
    try:
        atlas = open_atlas(directory)
        join_patterns(atlas) if found else write_patterns(atlas, progress=progress)
    except (KeyboardInterrupt, StopSignal) as stop:
        raise interruption(stop, f"stopped; {left}") from None
    except StoreFailed as refused:  # which says to run the same again, and mining would refuse a finished atlas
        raise StoreFailed(f"{str(refused).rpartition('; ')[0]}; {left}") from refused


def unsealed_atlas(directory: Path, facts: Mapping[str, Any], plan: MiningPlan) -> Atlas:
    """The folder of a run as the atlas that it will be: what patterns are found in can be read, no other table."""
    read = {path: found[0].name for path in table_files(directory) if (found := place(path))}
    files = {path: file_entry(directory / path) for path, name in read.items() if name in _OF_PATTERNS}
    document = {
        "model": facts,
        "corpus": {"fingerprint": plan.corpus_fingerprint},
        "plan": plan.document(),
        "plan_hash": plan.hash(),
        "layers": list(plan.layers),
        "files": files,
    }
    return Atlas(directory, Manifest.of(document), manifest_hash="")


def model_facts(model: LanguageModel) -> dict[str, Any]:
    """What the manifest says of a model: where it is from, its kind, sizes and proof, as plain values."""
    routed, shared = most_experts(model.numberings.values())
    experts = [numbering.document() for numbering in model.numberings.values()]
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
        "head": "linear" if model.linear_head else "adaptive softmax",
        **({"experts": routed, "shared_experts": shared} if experts else {}), **model.anatomy.hybrid_facts(),
        "sizes": {
            **vars(model.sizes),
            "memories": list(model.sizes.memories),
            **({"experts": experts} if experts else {}),
        },
        "beginning": {"token": model.beginning.token, "kind": model.beginning.kind},
        **({} if model.eager else {"attention_weights": "unknown"}),
        "proof": {name: getattr(model.proof, name) for name in ("residual", "ablation", "keys", "scores")},
    }


def manifest_of(
    facts: Mapping[str, Any],
    plan: MiningPlan,
    halved: Sequence[int],
    *,
    counts: Mapping[str, Any],
    versions: Sequence[Mapping[str, str]],
    part: tuple[int, int] | None,
    questions: Mapping[str, Any] | None,
    equality: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the manifest says, but for the schema, the package and the hashes; as of `seal_atlas`."""
    sentences = max(1, int(counts["sentences"]))
    document: dict[str, Any] = {
        "model": {**facts, "spec": plan.spec},
        "corpus": {
            "spec": plan.corpus,
            "fingerprint": plan.corpus_fingerprint,
            "counts": dict(counts),
            "held_out_share": int(counts["held_out_sentences"]) / sentences,
            "overlap": _overlap(counts),
        },
        "plan": plan.document(),
        "plan_hash": plan.hash(),
        "layers": list(plan.layers),
        "projections": {"values": "gain", "votes": "gain", "streams": "lens", "neighbours": "raw cosine"},
        "dtype": plan.dtype,
        "device": plan.device,
        "out_of_memory_batches": list(halved),
        "versions": list(versions),
        "byte_identity_promised": len(versions) == 1 and not halved,
        **(equality or {}),
    }
    if questions is not None:
        document["questions"] = dict(questions)
    if part is not None:
        document["part"] = {"index": part[0], "of": part[1]}
    return document


def _overlap(counts: Mapping[str, Any]) -> dict[str, Any]:
    """How many sentences of the validation text are mined, too: none where it was held out of the mined text."""
    given = counts.get("validation")
    total = int(counts["held_out_sentences"] if given is None else given["sentences"])
    shared = 0 if given is None else int(given["overlap_sentences"])
    return {"sentences": shared, "of": total, "share": shared / max(1, total)}
