"""The first stages after the text: the text's own tables, and triggers and activity of every layer. Nothing depends on
when, how often or by how many processes they run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mnemoscope.atlas.manifest import STATE
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_sentences
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import PartsDiffer
from mnemoscope.foundation.files import copy_file
from mnemoscope.mining.passes.own_coefficients import with_own
from mnemoscope.mining.passes.prefix_pass import PREFIXES, Prefixes
from mnemoscope.mining.text.batch_loader import background_table, sentence_rows, token_table
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.state import MiningState
from mnemoscope.mining.text.trigger_table import NamedSentences, layer_random, layer_triggers, sentences_of
from mnemoscope.mining.text_pass import layer_state
from mnemoscope.runs.workers.worker import Worker

SHARED = ("vocabulary", "tokens", "background")
"""Tables that the parts of one plan have in common."""


def write_text_tables(worker: Worker, _: int) -> None:
    """Writes vocabulary, tokens, background, the sentences that tables name, those that only random firings name, if
    they are drawn, routing, and the list of prefixes; releases the tokenized text.
    """
    sentences: list[Ints] = []
    drawn: list[Ints] = []
    routing: list[Mapping[str, NDArray[Any]]] = []
    for layer in worker.plan.layers:
        state = layer_state(worker, layer)
        sentences.append(state.triggers[layer].sentences())
        drawn += [firings.sentences() for firings in state.random.values()]
        routing += [counted.columns() for counted in state.routing.values()]
    named = np.unique(np.concatenate(sentences))
    if worker.run.parts:
        _copy_tables(worker, worker.run.parts, named)
    else:
        _write_tables(worker, worker.copy, named)
    if worker.plan.random:
        write_random_sentences(worker, drawn)
    if not worker.run.parts:
        worker.copy.release()
    if routing:
        worker.write("routing", {name: np.concatenate([table[name] for table in routing]) for name in routing[0]})
    worker.note("text", {"halved": state.halved, "equality": state.equality()})


def write_layer_tables(worker: Worker, layer: int) -> None:
    """Writes `triggers` and `activity` of one layer; needs `sentences`."""
    state, numberings = layer_state(worker, layer), worker.model.numberings
    rows = layer_triggers(state, layer, sentences_of(worker), worker.model.reading)
    triggers = columns_of((rows if worker.plan.own is None else with_own(worker, rows, layer)).to_arrow())
    activity = state.activity[layer].columns()
    if numberings:
        routing = state.routing.get(layer)
        prefixes = activity["prefixes"]
        triggers.setdefault("router_weight", pa.nulls(len(triggers["memory"]), pa.float32()))
        activity["all_prefixes"] = prefixes if routing is None else np.full_like(prefixes, int(routing.positions))
    worker.write("triggers", triggers, layer)
    worker.write("activity", activity, layer)
    if worker.plan.random:
        write_layer_random(worker, state, layer)


def write_random_sentences(worker: Worker, drawn: Sequence[Ints]) -> None:
    """Writes the sentences `drawn` that `sentences` lacks."""
    there = [pq.read_table(path, columns=["sentence"]) for path in _sentence_files(worker.directory, "sentences")]
    lacking = np.setdiff1d(np.concatenate(drawn), pa.concat_tables(there)["sentence"].to_numpy())
    parts = worker.run.parts
    pieces = _sentences(parts, lacking) if parts else sentence_rows(worker.copy, lacking)
    names = there[0].column_names + (["source", "source_tokens"] if worker.plan.source_field else [])
    columns = TABLES["random_sentences"].columns_beside(names)
    tables = [one if isinstance(one, pa.Table) else pa.table(one, schema=columns) for one in pieces]
    worker.write("random_sentences", columns_of(pa.concat_tables([columns.empty_table(), *tables]).combine_chunks()))


def write_layer_random(worker: Worker, state: MiningState, layer: int) -> None:
    """Writes `random` of one layer; needs `sentences` and `random_sentences`."""
    sentences = worker.keep(NamedSentences, lambda: NamedSentences(worker.directory, random=True))
    rows = columns_of(layer_random(state, layer, sentences, worker.model.reading).to_arrow())
    if worker.model.numberings:
        rows.setdefault("router_weight", pa.nulls(len(rows["memory"]), pa.float32()))
    worker.write("random", rows, layer)


def columns_of(rows: pa.Table) -> dict[str, Any]:
    return dict(zip(rows.column_names, rows.columns, strict=True))


def _write_tables(worker: Worker, copy: TokenizedCorpus, named: Ints) -> None:
    text, raw = worker.model.vocabulary()
    prefixes = Prefixes.choose(copy, count=worker.plan.prefixes, seed=worker.plan.seed, reading=worker.model.reading)
    background = background_table(copy, worker.plan, worker.model.reading)
    worker.write("vocabulary", {"token": np.arange(len(text), dtype=np.int32), "text": text, "bytes": raw})
    worker.write("tokens", token_table(copy, worker.model.sizes.vocabulary))
    worker.write("background", background)
    named = np.union1d(named, np.concatenate([background["sentence"], prefixes.sentence]))
    _write_sentences(worker, sentence_rows(copy, named))
    prefixes.save(worker)


def _copy_tables(worker: Worker, parts: Sequence[Path], named: Ints) -> None:
    for name in SHARED:
        copy_file(parts[0] / TABLES[name].path(), worker.path(name))
        worker.made.append(worker.path(name))
    prefixes = Prefixes.load(parts[0] / STATE / PREFIXES)
    prefixes.save(worker)
    background = pq.read_table(worker.path("background"))["sentence"].to_numpy()
    named = np.union1d(named, np.concatenate([background, prefixes.sentence]))
    _write_sentences(worker, _sentences(parts, named))


def _write_sentences(worker: Worker, rows: Iterable[Mapping[str, Any] | pa.Table]) -> None:
    parts = write_sentences(worker.directory, rows, provenance=worker.run.provenance)
    worker.made += [worker.path("sentences", part) for part in range(parts)]


def _sentences(parts: Sequence[Path], named: Ints) -> Iterator[pa.Table]:
    """The named sentences of all parts, each once, ascending, in chunks."""
    wanted = pa.array(named)
    tables = [
        pq.read_table(path).filter(pc.is_in(pc.field("sentence"), wanted))
        for part in parts
        for name in ("sentences", "random_sentences")
        for path in _sentence_files(part, name)
    ]
    rows = pa.concat_tables(tables)
    ids, firsts = np.unique(rows["sentence"].to_numpy(), return_index=True)
    if len(ids) != len(named):
        raise PartsDiffer(f"the parts lack {len(named) - len(ids)} sentences that their triggers name; mine them again")
    for start in range(0, len(firsts), 8192):
        yield rows.take(pa.array(firsts[start : start + 8192])).combine_chunks()


def _sentence_files(folder: Path, name: str) -> list[Path]:
    """The files of `sentences` or `random_sentences`, none of which need be there."""
    return sorted([*folder.glob(f"{name}/part-*.parquet"), *folder.glob(f"{name}.parquet")])
