"""From what was accumulated to the tables and the manifest of an atlas.

A single run, a resumed one and a merge of parts all end here, so they end in the same bytes. Nothing here depends on
when or how often it runs; tables of the value pass that are there already are kept.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.experts import Numberings, counted_through, with_experts, with_names
from mnemoscope.atlas.folder import remove_work
from mnemoscope.atlas.manifest import RUN, STATE, seal
from mnemoscope.atlas.schema import TABLES, Provenance, schema_error
from mnemoscope.atlas.store import write_sentences, write_table
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import Interrupted
from mnemoscope.files import write_json
from mnemoscope.memory import most_experts
from mnemoscope.mining.batch_loader import background_table, sentence_rows, token_table
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.predictions import PREFIXES, Prefixes, choose_prefixes, predictions_of
from mnemoscope.mining.removals import removal_table
from mnemoscope.mining.state import MiningState
from mnemoscope.mining.steps import CHECKPOINT, RunContext
from mnemoscope.mining.trigger_table import NamedSentences, layer_triggers
from mnemoscope.mining.values import neighbour_table, targets, value_table, working_columns
from mnemoscope.models import LanguageModel
from mnemoscope.patterns import write_patterns
from mnemoscope.progress import Progress


def provenance_of(plan: MiningPlan) -> Provenance:
    """What every table of the plan says about its origin."""
    return Provenance(model=plan.model_fingerprint, corpus=str(plan.corpus_fingerprint), plan=plan.hash())


def write_text_tables(
    context: RunContext, model: LanguageModel, copy: TokenizedCorpus, plan: MiningPlan, state: MiningState
) -> Prefixes:
    """Writes vocabulary, tokens, background, and the sentences that any table names; returns the prefixes to ask.

    The tokenized text is let go, since it is not read after this.
    """
    directory = context.directory
    text, raw = model.vocabulary()
    token = np.arange(len(text), dtype=np.int32)
    first = 1 - model.beginning.length
    prefixes = choose_prefixes(copy, count=plan.prefixes, seed=plan.seed, first=first)
    background = background_table(copy, plan, first_position=first)
    for name, columns in (
        ("vocabulary", {"token": token, "text": text, "bytes": raw}),
        ("tokens", token_table(copy, model.sizes.vocabulary)),
        ("background", background),
    ):
        _write(directory, plan, name, columns, {})
    named = np.union1d(state.named_sentences().numpy(), np.concatenate([background["sentence"], prefixes.sentence]))
    write_sentences(directory, sentence_rows(copy, named), provenance=provenance_of(plan))
    copy.release()
    context.heap.trim()
    return prefixes


def write_mined_tables(context: RunContext, plan: MiningPlan, state: MiningState) -> None:
    """Writes triggers and activity of every mined layer; `sentences` must be there."""
    directory, progress, numberings = context.directory, context.progress, state.shape.numberings
    sentences = NamedSentences(directory)
    for done, layer in enumerate(plan.layers):
        progress("tables", done, len(plan.layers), "layers")
        triggers = columns_of(layer_triggers(state, layer, sentences).to_arrow())
        activity = state.activity[layer].columns()
        if numberings:
            routing = state.routing.get(layer)
            prefixes = activity["prefixes"]
            triggers.setdefault("router_weight", pa.nulls(len(triggers["memory"]), pa.float32()))
            activity["all_prefixes"] = prefixes if routing is None else np.full_like(prefixes, int(routing.positions))
        _write(directory, plan, "triggers", triggers, numberings, layer=layer)
        _write(directory, plan, "activity", activity, numberings, layer=layer)
    if state.routing:
        tables = [routing.columns(layer) for layer, routing in state.routing.items()]
        columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        _write(directory, plan, "routing", columns, {})
    progress("tables", len(plan.layers), len(plan.layers), "layers")
    context.heap.trim()
    context.end_stage("tables")


def write_value_tables(context: RunContext, state: MiningState, model: LanguageModel, plan: MiningPlan) -> None:
    """Writes values and neighbours of every mined layer, but those of this plan that are there.

    `sentences` must be there. What the values are at work is not known before the predictions (`write_values_at_work`).
    """
    directory, progress = context.directory, context.progress
    sentences: NamedSentences | None = None
    for done, layer in enumerate(plan.layers):
        progress("values", done, len(plan.layers), "layers")
        if not _is_made(directory, plan, "values", layer):
            sentences = sentences or NamedSentences(directory)
            wanted = targets(layer_triggers(state, layer, sentences), model.sizes.memories[layer])
            _write(directory, plan, "values", value_table(model, layer, wanted), model.numberings, layer=layer)
        if not _is_made(directory, plan, "neighbours", layer):
            similar = neighbour_table(model, layer, plan.layers, most=plan.neighbours)
            _write(directory, plan, "neighbours", similar, model.numberings, layer=layer)
    progress("values", len(plan.layers), len(plan.layers), "layers")
    context.end_stage("values")


def write_question_tables(
    context: RunContext, model: LanguageModel, plan: MiningPlan, prefixes: Prefixes
) -> dict[str, Any]:
    """Runs what needs all triggers and values: writes removals, prefixes, predictions, and what values are at work.

    Says what was asked. What was answered before a stop is taken up from the work folder.
    """
    sentences = NamedSentences(context.directory)
    removals, left_out, removals_halved = removal_table(context, model, plan, sentences)
    work, predictions_halved = predictions_of(context, model, plan, prefixes, sentences)
    listed, predictions = work.columns()
    for name, columns in (("removals", removals), ("predictions", predictions), ("prefixes", listed)):
        _write(context.directory, plan, name, columns, model.numberings)
    scales = work.scales()
    write_values_at_work(context, model, plan, scales)
    return {
        "prefixes_asked": plan.prefixes,
        "prefixes": len(prefixes.sentence),
        "value_scales": scales,
        "removals_per_layer": plan.removals,
        "removals_excluded": left_out,
        "out_of_memory_steps": {"removals": removals_halved, "predictions": predictions_halved},
    }


def write_values_at_work(
    context: RunContext, model: LanguageModel, plan: MiningPlan, scales: Sequence[float | None]
) -> None:
    """Fills in the columns of `values` that need the scale of each mined layer; nothing where there is none."""
    for done, (layer, scale) in enumerate(zip(plan.layers, scales, strict=True)):
        context.progress("values at work", done, len(plan.layers), "layers")
        if scale is not None:
            values, triggers = (context.directory / TABLES[name].path(layer) for name in ("values", "triggers"))
            names = ["memory", "sign", "coefficient"]
            stored = pl.read_parquet(triggers, columns=with_names(names) if model.numberings else names, glob=False)
            found = counted_through(stored, model.numberings, layer)
            columns = columns_of(pq.read_table(values)) | working_columns(model, layer, found, scale=scale)
            _write(context.directory, plan, "values", columns, {}, layer=layer)
    context.progress("values at work", len(plan.layers), len(plan.layers), "layers")
    context.end_stage("values at work")


def columns_of(rows: pa.Table) -> dict[str, Any]:
    """The columns of a table by name."""
    return dict(zip(rows.column_names, rows.columns, strict=True))


def _write(
    directory: Path,
    plan: MiningPlan,
    name: str,
    columns: dict[str, Any],
    numberings: Numberings,
    *,
    layer: int | None = None,
) -> None:
    """Writes a table, whose memories are counted through their layers where there are `numberings`."""
    stored = with_experts(columns, numberings, layer)
    write_table(directory / TABLES[name].path(layer), stored, name=name, provenance=provenance_of(plan))


def _is_made(directory: Path, plan: MiningPlan, name: str, layer: int) -> bool:
    """Whether the folder holds this table, made from this model, text and plan."""
    try:
        return schema_error(name, pq.read_schema(directory / TABLES[name].path(layer)), provenance_of(plan)) is None
    except (OSError, pa.ArrowException):
        return False


def finish_atlas(
    context: RunContext,
    model: LanguageModel,
    plan: MiningPlan,
    state: MiningState,
    prefixes: Prefixes,
    *,
    counts: dict[str, Any],
    versions: Sequence[Mapping[str, str]],
    part: tuple[int, int] | None = None,
    keep_work: bool = False,
) -> None:
    """Makes an atlas of a folder that holds the mined tables, or a part, which carries what `merge` needs of it."""
    directory, questions = context.directory, None
    if part is None:
        write_value_tables(context, state, model, plan)
        questions = write_question_tables(context, model, plan, prefixes)
    else:
        state.save(directory / STATE / CHECKPOINT, plan=plan.hash())
        prefixes.save(directory / STATE / PREFIXES)
    write_json(directory / RUN, {  # which no hash covers
        "seconds": {stage: round(seconds, 3) for stage, seconds in context.seconds.items()},
        "host": platform.node(),
        "machine": platform.machine(),
        "waiting": os.environ.get("OMP_WAIT_POLICY"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    seal(directory, manifest_of(model, plan, counts, state, versions, part=part, questions=questions))
    if not keep_work:
        remove_work(directory)
    if part is None:
        add_patterns(directory, context.progress)


def add_patterns(directory: Path, progress: Progress) -> None:
    """Makes the patterns of the atlas, which is sealed by now; raises Interrupted after Ctrl-C, StoreFailed."""
    try:
        write_patterns(open_atlas(directory), progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped; {directory} is finished but for its patterns, which `mnemoscope analyze {directory}` makes"
        ) from None


def model_facts(model: LanguageModel) -> dict[str, Any]:
    """What the manifest says of a model: where it is from, its kind, sizes and proof, as plain values."""
    routed, shared = most_experts(model.numberings.values())
    experts = [numbering.document() for numbering in model.numberings.values()]
    return {
        "spec": model.spec,
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
        "proof": {name: getattr(model.proof, name) for name in ("residual", "ablation", "keys", "scores")},
    }


def manifest_of(
    model: LanguageModel,
    plan: MiningPlan,
    counts: dict[str, Any],
    state: MiningState,
    versions: Sequence[Mapping[str, str]],
    *,
    part: tuple[int, int] | None,
    questions: dict[str, Any] | None,
) -> dict[str, Any]:
    """What the manifest says, but for the schema, the package and the hashes; `versions` as of `all_versions`."""
    document: dict[str, Any] = {
        "model": model_facts(model),
        "corpus": {
            "spec": plan.corpus,
            "fingerprint": plan.corpus_fingerprint,
            "counts": counts,
            "held_out_share": int(counts["held_out_sentences"]) / max(1, int(counts["sentences"])),
            "overlap": _overlap(counts),
        },
        "plan": plan.document(),
        "plan_hash": plan.hash(),
        "layers": list(plan.layers),
        "projections": {"values": "gain", "votes": "gain", "streams": "lens", "neighbours": "raw cosine"},
        "dtype": plan.dtype,
        "device": plan.device,
        "out_of_memory_batches": state.halved,
        "versions": list(versions),
        "byte_identity_promised": len(versions) == 1 and not state.halved,
        **state.equality(),
    }
    if questions is not None:
        document["questions"] = questions
    if part is not None:
        document["part"] = {"index": part[0], "of": part[1]}
    return document


def _overlap(counts: dict[str, Any]) -> dict[str, Any]:
    """How many sentences of the validation text are mined, too: none where it was held out of the mined text."""
    given = counts.get("validation")
    total = int(counts["held_out_sentences"] if given is None else given["sentences"])
    shared = 0 if given is None else int(given["overlap_sentences"])
    return {"sentences": shared, "of": total, "share": shared / max(1, total)}
