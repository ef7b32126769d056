"""The end of a run: patterns, the manifest, and the seal.

Sealing needs no model, only `model_facts`: the driver that seals what workers made has none. Patterns are found before
the seal, layer by layer, and joined after it, since the manifest does not cover them.
"""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.folder import remove_work
from mnemoscope.atlas.form import COUNTED, Manifest
from mnemoscope.atlas.manifest import RUN, mined_from, seal, table_files
from mnemoscope.atlas.schema import SCHEMA_VERSION, place
from mnemoscope.atlas.tables import patterns_command
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation.files import file_entry, write_json
from mnemoscope.foundation.memory_names import most_experts
from mnemoscope.foundation.origin import package_version
from mnemoscope.foundation.progress import StopSignal, interruption
from mnemoscope.mining.mining_run import MiningRun, read_note
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext
from mnemoscope.models import LanguageModel
from mnemoscope.patterns import PatternFinder, join_patterns, open_finder, write_layer_patterns, write_words

SEALING = "sealing"
"""The stage from whose begin nothing may write into the work folder."""
_PROJECTIONS = {"values": "gain", "votes": "gain", "streams": "lens", "neighbours": "raw cosine"}
_OF_PATTERNS = ("vocabulary", "background", "sentences", "triggers", "similar_words")
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
    """Seals the folder as an atlas, or a part, when all stages are done. `facts` are `model_facts`, `counts` those of
    the text, `versions` those of `all_versions`.
    """
    directory, work = context.directory, context.work
    context.progress(SEALING, 0, None, "")
    write_json(
        directory / RUN,
        {  # which no hash covers
            "seconds": {stage: round(seconds, 3) for stage, seconds in context.seconds.items()},
            "host": platform.node(),
            "machine": platform.machine(),
            "paths": mined_from(directory),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    text, questions = read_note(work, "text"), None
    if part is None:
        asked = {stage: read_note(work, stage) for stage in ("scales", "removals", "predictions")}
        halved = {stage: own.pop("halved") for stage, own in asked.items()}
        halved = {stage: steps for stage, steps in halved.items() if steps or stage != "scales"}
        questions = {**asked["removals"], **asked["predictions"], **asked["scales"], "out_of_memory_steps": halved}
    given, held_out = counts.get("validation"), int(counts["held_out_sentences"])
    # Sentences of a separate validation text may be mined, too; of the mined text none is.
    total = held_out if given is None else int(given["sentences"])
    shared = 0 if given is None else int(given["overlap_sentences"])
    document: dict[str, Any] = {
        "model": {**facts, "spec": plan.spec},
        "corpus": {
            "spec": plan.corpus,
            "fingerprint": plan.corpus_fingerprint,
            "counts": dict(counts),
            "held_out_share": held_out / max(1, int(counts["sentences"])),
            "overlap": {"sentences": shared, "of": total, "share": shared / max(1, total)},
        },
        "plan": plan.document(),
        "plan_hash": plan.hash(),
        "layers": list(plan.layers),
        "projections": _PROJECTIONS,
        "dtype": plan.dtype,
        "device": plan.device,
        "out_of_memory_batches": text["halved"],
        "versions": list(versions),
        "byte_identity_promised": len(versions) == 1 and not text["halved"],
        **text["equality"],
        **({} if questions is None else {"questions": questions}),
        **({} if part is None else {"part": {"index": part[0], "of": part[1]}}),
    }
    seal(directory, document)
    if part is None:
        add_patterns(directory)
    if not keep_work:
        remove_work(directory)


def add_patterns(directory: Path) -> None:
    """Joins the patterns of all layers in the sealed atlas."""
    left = f"{directory} is finished but for its patterns, which {patterns_command(directory)} makes"
    try:
        join_patterns(open_atlas(directory))
    except (KeyboardInterrupt, StopSignal) as stop:
        raise interruption(stop, f"stopped; {left}") from None
    except StoreFailed as refused:  # which says to run the same again, and mining would refuse a finished atlas
        raise StoreFailed(f"{str(refused).rpartition('; ')[0]}; {left}") from refused


def number_words(run: MiningRun) -> None:
    """Numbers the words of all layers at once: ties between patterns are ordered by their words."""
    run.made.append(write_words(_unsealed_atlas(run), progress=run.context.progress))


def find_layer_patterns(run: MiningRun, layer: int) -> None:
    finder = run.keep(PatternFinder, lambda: open_finder(_unsealed_atlas(run)))
    run.made.append(write_layer_patterns(finder.atlas, layer, finder))


def _unsealed_atlas(run: MiningRun) -> Atlas:
    """The folder as an atlas with only the tables in which patterns are found."""
    directory, plan = run.directory, run.plan
    read = {path: found[0].name for path in table_files(directory) if (found := place(path))}
    files = {path: file_entry(directory / path) for path, name in read.items() if name in _OF_PATTERNS}
    document = {
        "schema": SCHEMA_VERSION,
        "package": package_version(),
        "model": model_facts(run.model),
        "corpus": {
            "spec": plan.corpus,
            "fingerprint": plan.corpus_fingerprint,
            "counts": dict.fromkeys(COUNTED, 0),
            "held_out_share": 0.0,
            "overlap": {"sentences": 0, "of": 0, "share": 0.0},
        },
        "projections": _PROJECTIONS,
        "out_of_memory_batches": [],
        "plan": plan.document(),
        "plan_hash": plan.hash(),
        "layers": list(plan.layers),
        "files": files,
    }
    return Atlas(directory, Manifest.of(document), manifest_hash="")


def model_facts(model: LanguageModel) -> dict[str, Any]:
    """The entry of a model in the manifest: origin, kind, sizes and proof."""
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
        **({"experts": routed, "shared_experts": shared} if experts else {}),
        **model.anatomy.hybrid_facts(),
        "sizes": {
            **vars(model.sizes),
            "memories": list(model.sizes.memories),
            **({"experts": experts} if experts else {}),
        },
        "beginning": {"token": model.beginning.token, "kind": model.beginning.kind},
        **({} if model.eager else {"attention_weights": "unknown"}),
        "proof": {name: getattr(model.proof, name) for name in ("residual", "ablation", "keys", "scores")},
    }
