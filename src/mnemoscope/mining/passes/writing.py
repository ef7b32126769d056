"""From what was accumulated to the tables of an atlas.

A single run, a resumed one, a merge of parts (`finishing`) and workers (`late_stages`) all write with these, so they
end in the same bytes. Nothing here depends on when or how often it runs; tables of the value pass that are there
already are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mnemoscope.atlas.experts import Numberings, counted_through, with_experts, with_names
from mnemoscope.atlas.schema import TABLES, Provenance, schema_error
from mnemoscope.atlas.store import write_sentences, write_table
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.foundation.files import copy_file
from mnemoscope.mining.passes.neighbours import NeighbourPass
from mnemoscope.mining.passes.predictions import PredictionPass, Prefixes, choose_prefixes
from mnemoscope.mining.passes.removals import RemovalPass
from mnemoscope.mining.passes.values import Scale, ValuePass, targets
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.steps import RunContext, run_checkpointed
from mnemoscope.mining.text.batch_loader import background_table, sentence_rows, token_table
from mnemoscope.mining.text.state import MiningState
from mnemoscope.mining.text.trigger_table import NamedSentences, layer_triggers
from mnemoscope.models import LanguageModel


def provenance_of(plan: MiningPlan) -> Provenance:
    """What every table of the plan says about its origin."""
    return Provenance(model=plan.model_fingerprint, corpus=str(plan.corpus_fingerprint), plan=plan.hash())


def write_text_tables(
    context: RunContext, model: LanguageModel, copy: TokenizedCorpus, plan: MiningPlan, state: MiningState
) -> Prefixes:
    """Writes vocabulary, tokens, background, and the sentences that any table names; returns the prefixes to ask.

    The tokenized text is let go, since it is not read after this.
    """
    return write_texts(context, model, copy, plan, state.named_sentences().numpy())


def write_texts(
    context: RunContext, model: LanguageModel, copy: TokenizedCorpus, plan: MiningPlan, named: NDArray[np.int64]
) -> Prefixes:
    """`write_text_tables`, where triggers name these sentences."""
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
        write_columns(directory, plan, name, columns, {})
    named = np.union1d(named, np.concatenate([background["sentence"], prefixes.sentence]))
    write_sentences(directory, sentence_rows(copy, named), provenance=provenance_of(plan))
    copy.release()
    context.heap.trim()
    return prefixes


def write_mined_tables(context: RunContext, plan: MiningPlan, state: MiningState) -> None:
    """Writes triggers and activity of every mined layer; `sentences` must be there."""
    sentences = NamedSentences(context.directory)
    for layer in each_layer(context, plan, "tables"):
        write_mined_layer(context.directory, plan, state, layer, sentences, state.shape.numberings)
    write_routing(context.directory, plan, [routing.columns(layer) for layer, routing in state.routing.items()])
    context.heap.trim()
    context.end_stage("tables")


def write_mined_layer(
    directory: Path,
    plan: MiningPlan,
    state: MiningState,
    layer: int,
    sentences: NamedSentences,
    numberings: Numberings,
) -> None:
    """Writes triggers and activity of one layer, which the state must hold; `numberings` are the model's."""
    triggers = columns_of(layer_triggers(state, layer, sentences).to_arrow())
    activity = state.activity[layer].columns()
    if numberings:
        routing = state.routing.get(layer)
        prefixes = activity["prefixes"]
        triggers.setdefault("router_weight", pa.nulls(len(triggers["memory"]), pa.float32()))
        activity["all_prefixes"] = prefixes if routing is None else np.full_like(prefixes, int(routing.positions))
    write_columns(directory, plan, "triggers", triggers, numberings, layer=layer)
    write_columns(directory, plan, "activity", activity, numberings, layer=layer)


def write_routing(directory: Path, plan: MiningPlan, layers: Sequence[Mapping[str, Any]]) -> None:
    """Writes what was counted of the routers of these layers, in order; nothing where there are none."""
    if layers:
        columns = {name: np.concatenate([table[name] for table in layers]) for name in layers[0]}
        write_columns(directory, plan, "routing", columns, {})


def write_value_tables(context: RunContext, state: MiningState, model: LanguageModel, plan: MiningPlan) -> None:
    """Writes values and neighbours of every mined layer, but those of this plan that are there.

    `sentences` must be there. What the values are at work is not known before the predictions (`write_working_values`).
    """
    sentences: NamedSentences | None = None
    values = ValuePass(model)
    for layer in each_layer(context, plan, "values"):
        path = context.directory / TABLES["values"].path(layer)
        if not is_made(path, plan, "values"):
            sentences = sentences or NamedSentences(context.directory)
            write_values(path, plan, values, state, layer, sentences)
    del values  # the neighbours' room comes next
    neighbours = neighbour_pass(model, plan)
    for layer in each_layer(context, plan, "neighbours"):
        write_neighbours(context.directory, plan, model, neighbours, layer)
    context.end_stage("values")


def write_values(
    path: Path, plan: MiningPlan, values: ValuePass, state: MiningState, layer: int, sentences: NamedSentences
) -> None:
    """Writes the table `values` of one layer, which the state must hold, to `path`."""
    model = values.model
    wanted = targets(layer_triggers(state, layer, sentences), model.sizes.memories[layer])
    columns = with_experts(values.columns(layer, wanted), model.numberings, layer)
    write_table(path, columns, name="values", provenance=provenance_of(plan))


def neighbour_pass(model: LanguageModel, plan: MiningPlan) -> NeighbourPass:
    """What finds the neighbours of the plan's layers."""
    return NeighbourPass(model, plan.layers, most=plan.neighbours)


def write_neighbours(
    directory: Path, plan: MiningPlan, model: LanguageModel, neighbours: NeighbourPass, layer: int
) -> None:
    """Writes the table `neighbours` of one layer, if it is not there."""
    if not is_made(directory / TABLES["neighbours"].path(layer), plan, "neighbours"):
        write_columns(directory, plan, "neighbours", neighbours.columns(layer), model.numberings, layer=layer)


def write_question_tables(
    context: RunContext, model: LanguageModel, plan: MiningPlan, prefixes: Prefixes
) -> dict[str, Any]:
    """Runs what needs all triggers and values: writes removals, prefixes, predictions, and what values are at work.

    Says what was asked. What was answered before a stop is taken up from the work folder.
    """
    directory, halved = context.directory, {}
    values = {layer: directory / TABLES["values"].path(layer) for layer in plan.layers}
    sentences = NamedSentences(directory)
    removals = RemovalPass(directory, model, plan, sentences)
    halved["removals"] = run_checkpointed(context, removals.steps)
    questions = write_removals(directory, model, plan, removals)
    del removals  # its requests take room
    predictions = PredictionPass(model, plan, prefixes, sentences, values)
    halved["predictions"] = run_checkpointed(context, predictions.steps)
    questions |= write_predictions(directory, model, plan, predictions) | {"out_of_memory_steps": halved}
    scales = dict(zip(plan.layers, questions["value_scales"], strict=True))
    working = ValuePass(model)
    for layer in each_layer(context, plan, "values at work"):
        write_working_values(values[layer], directory, plan, working, layer, scale=scales[layer])
    context.end_stage("values at work")
    return questions


def write_removals(directory: Path, model: LanguageModel, plan: MiningPlan, asked: RemovalPass) -> dict[str, Any]:
    """Writes removals, once all was answered; returns what the manifest says of them."""
    write_columns(directory, plan, "removals", asked.columns(), model.numberings)
    return {"removals_per_layer": plan.removals, "removals_excluded": asked.left_out}


def write_predictions(directory: Path, model: LanguageModel, plan: MiningPlan, asked: PredictionPass) -> dict[str, Any]:
    """Writes prefixes and predictions, once all was answered; returns what the manifest says of them."""
    listed, predicted = asked.columns()
    for name, columns in (("predictions", predicted), ("prefixes", listed)):
        write_columns(directory, plan, name, columns, model.numberings)
    count = len(listed["prefix"])
    return {"prefixes_asked": plan.prefixes, "prefixes": count, "value_scales": asked.scales()}


def write_working_values(
    source: Path, directory: Path, plan: MiningPlan, values: ValuePass, layer: int, *, scale: Scale | None
) -> None:
    """Makes the finished table `values` of one layer of the one at `source`: fills in the columns that need `scale`.

    Without a scale they stay as they are.
    """
    path = directory / TABLES["values"].path(layer)
    if scale is None:
        if path != source:
            copy_file(source, path)
        return
    names, numberings = ["memory", "sign", "coefficient"], values.model.numberings
    stored = pl.read_parquet(
        directory / TABLES["triggers"].path(layer), columns=with_names(names) if numberings else names, glob=False
    )
    found = counted_through(stored, numberings, layer)
    columns = columns_of(pq.read_table(source)) | values.working_columns(layer, found, scale=scale)
    write_columns(directory, plan, "values", columns, {}, layer=layer)


def each_layer(context: RunContext, plan: MiningPlan, stage: str) -> Iterator[int]:
    """The mined layers, of which the progress is told."""
    for done, layer in enumerate(plan.layers):
        context.progress(stage, done, len(plan.layers), "layers")
        yield layer
    context.progress(stage, len(plan.layers), len(plan.layers), "layers")


def columns_of(rows: pa.Table) -> dict[str, Any]:
    """The columns of a table by name."""
    return dict(zip(rows.column_names, rows.columns, strict=True))


def write_columns(
    directory: Path,
    plan: MiningPlan,
    name: str,
    columns: Mapping[str, Any],
    numberings: Numberings,
    *,
    layer: int | None = None,
) -> None:
    """Writes a table, whose memories are counted through their layers where there are `numberings`."""
    stored = with_experts(columns, numberings, layer)
    write_table(directory / TABLES[name].path(layer), stored, name=name, provenance=provenance_of(plan))


def is_made(path: Path, plan: MiningPlan, name: str) -> bool:
    """Whether this table lies at `path`, made from this model, text and plan."""
    try:
        return schema_error(name, pq.read_schema(path), provenance_of(plan)) is None
    except (OSError, pa.ArrowException):
        return False
