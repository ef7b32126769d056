"""The end of a run: patterns, what the manifest says, and the seal.

Sealing needs no model, only `model_facts`: the driver that seals what workers made has none. Patterns are found before
the seal, layer by layer, and put together behind it, since the manifest does not cover them.
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
from mnemoscope.foundation.progress import StopSignal, interruption
from mnemoscope.mining.mining_run import MiningRun, read_note
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext
from mnemoscope.models import LanguageModel
from mnemoscope.patterns import PatternFinder, join_patterns, open_finder, write_layer_patterns, write_words

SEALING = "sealing"
"""The stage at whose begin nothing may write into the work folder any more."""
_OF_PATTERNS = ("vocabulary", "background", "sentences", "triggers")
"""The tables in which patterns are found."""


def seal_run(
    context: RunContext,
    plan: MiningPlan,
    facts: Mapping[str, Any],
    *,
    counts: Mapping[str, Any],
    versions: Sequence[Mapping[str, str]],
    part: tuple[int, int] | None = None,
    keep_work: bool = False,
) -> None:
    """Makes an atlas, or a part, of a folder in which all stages are done; needs no model.

    `facts` are those of `model_facts`, as they are or read from JSON; `counts` those of the text; `versions` as of
    `all_versions`. Raises MiningError where a stage is not done, AtlasUnfinished where a layer's patterns are missing
    (the atlas is sealed then), Interrupted, StoreFailed.
    """
    directory, work = context.directory, context.work
    context.progress(SEALING, 0, None, "")
    write_json(directory / RUN, {  # which no hash covers
        "seconds": {stage: round(seconds, 3) for stage, seconds in context.seconds.items()},
        "host": platform.node(),
        "machine": platform.machine(),
        "paths": mined_from(directory),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    text, questions = read_note(work, "text", plan), None
    if part is None:
        asked = {stage: read_note(work, stage, plan) for stage in ("scales", "removals", "predictions")}
        halved = {stage: own.pop("halved") for stage, own in asked.items()}
        halved = {stage: steps for stage, steps in halved.items() if steps or stage != "scales"}
        questions = {**asked["removals"], **asked["predictions"], **asked["scales"], "out_of_memory_steps": halved}
    document = manifest_of(
        facts, plan, text["halved"], counts=counts, versions=versions, part=part, questions=questions,
        equality=text["equality"],
    )  # fmt: skip
    seal(directory, document)
    if part is None:
        add_patterns(directory)
    if not keep_work:
        remove_work(directory)


def add_patterns(directory: Path) -> None:
    """Puts the patterns of all layers together in the atlas, which is sealed by now.

    Raises Interrupted after Ctrl-C, StoreFailed, AtlasUnfinished where a layer's were not found.
    """
    left = f"{directory} is finished but for its patterns, which {patterns_command(directory)} makes"
    try:
        join_patterns(open_atlas(directory))
    except (KeyboardInterrupt, StopSignal) as stop:
        raise interruption(stop, f"stopped; {left}") from None
    except StoreFailed as refused:  # which says to run the same again, and mining would refuse a finished atlas
        raise StoreFailed(f"{str(refused).rpartition('; ')[0]}; {left}") from refused


def number_words(run: MiningRun) -> None:
    """Numbers the words of all layers, in one go: patterns that are equals come in the order of their words."""
    write_words(_unsealed_atlas(run), progress=run.context.progress)


def find_layer_patterns(run: MiningRun, layer: int) -> None:
    """Finds the patterns of one layer, whose triggers must be there."""
    finder = run.keep(PatternFinder, lambda: open_finder(_unsealed_atlas(run)))
    write_layer_patterns(finder.atlas, layer, finder)


def _unsealed_atlas(run: MiningRun) -> Atlas:
    """The folder of a run as the atlas that it will be: what patterns are found in can be read, no other table."""
    directory, plan = run.directory, run.plan
    read = {path: found[0].name for path in table_files(directory) if (found := place(path))}
    files = {path: file_entry(directory / path) for path, name in read.items() if name in _OF_PATTERNS}
    document = {
        "model": model_facts(run.model),
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
