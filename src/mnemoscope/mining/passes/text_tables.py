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
from mnemoscope.errors import MiningError, PartsDiffer
from mnemoscope.foundation.files import copy_file
from mnemoscope.mining.mining_run import MiningRun, columns_of
from mnemoscope.mining.passes.prefix_pass import PREFIXES, Prefixes
from mnemoscope.mining.text.batch_loader import background_table, sentence_rows, token_table
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.state import MiningState
from mnemoscope.mining.text.trigger_table import NamedSentences, layer_random, layer_triggers

SHARED = ("vocabulary", "tokens", "background")
"""Tables that the parts of one plan have in common."""


def write_text_tables(run: MiningRun) -> None:
    """Writes vocabulary, tokens, background, the sentences that tables name, those that only random firings name, if
    they are drawn, routing, and the list of prefixes; releases the tokenized text.
    """
    sentences: list[Ints] = []
    drawn: list[Ints] = []
    routing: list[Mapping[str, NDArray[Any]]] = []
    for layer in run.plan.layers:
        state = run.layer_state(layer)
        sentences.append(state.triggers[layer].sentences())
        drawn += [firings.sentences() for firings in state.random.values()]
        routing += [counted.columns() for counted in state.routing.values()]
    named = np.unique(np.concatenate(sentences))
    if run.copy is not None:
        _write_tables(run, run.copy, named)
    elif run.parts:
        _copy_tables(run, run.parts, named)
    else:
        raise MiningError("the text tables are made of the tokenized text, which was not given")
    if run.plan.random:
        write_random_sentences(run, drawn)
    if run.copy is not None:
        run.copy.release()
    if routing:
        run.write("routing", {name: np.concatenate([table[name] for table in routing]) for name in routing[0]})
    run.note("text", {"halved": state.halved, "equality": state.equality()})


def write_layer_tables(run: MiningRun, layer: int) -> None:
    """Writes `triggers` and `activity` of one layer; needs `sentences`."""
    state, numberings = run.layer_state(layer), run.model.numberings
    triggers = columns_of(layer_triggers(state, layer, run.sentences, run.model.reading).to_arrow())
    activity = state.activity[layer].columns()
    if numberings:
        routing = state.routing.get(layer)
        prefixes = activity["prefixes"]
        triggers.setdefault("router_weight", pa.nulls(len(triggers["memory"]), pa.float32()))
        activity["all_prefixes"] = prefixes if routing is None else np.full_like(prefixes, int(routing.positions))
    run.write("triggers", triggers, layer)
    run.write("activity", activity, layer)
    if run.plan.random:
        write_layer_random(run, state, layer)


def write_random_sentences(run: MiningRun, drawn: Sequence[Ints]) -> None:
    """Writes the sentences `drawn` that `sentences` lacks."""
    there = [pq.read_table(path, columns=["sentence"]) for path in _sentence_files(run.directory, "sentences")]
    lacking = np.setdiff1d(np.concatenate(drawn), pa.concat_tables(there)["sentence"].to_numpy())
    pieces = _sentences(run.parts, lacking) if run.copy is None else sentence_rows(run.copy, lacking)
    columns = TABLES["random_sentences"].columns
    tables = [one if isinstance(one, pa.Table) else pa.table(one, schema=columns) for one in pieces]
    run.write("random_sentences", columns_of(pa.concat_tables([columns.empty_table(), *tables]).combine_chunks()))


def write_layer_random(run: MiningRun, state: MiningState, layer: int) -> None:
    """Writes `random` of one layer; needs `sentences` and `random_sentences`."""
    sentences = run.keep(NamedSentences, lambda: NamedSentences(run.directory, random=True))
    rows = columns_of(layer_random(state, layer, sentences, run.model.reading).to_arrow())
    if run.model.numberings:
        rows.setdefault("router_weight", pa.nulls(len(rows["memory"]), pa.float32()))
    run.write("random", rows, layer)


def _write_tables(run: MiningRun, copy: TokenizedCorpus, named: Ints) -> None:
    text, raw = run.model.vocabulary()
    prefixes = Prefixes.choose(copy, count=run.plan.prefixes, seed=run.plan.seed, reading=run.model.reading)
    background = background_table(copy, run.plan, run.model.reading)
    run.write("vocabulary", {"token": np.arange(len(text), dtype=np.int32), "text": text, "bytes": raw})
    run.write("tokens", token_table(copy, run.model.sizes.vocabulary))
    run.write("background", background)
    named = np.union1d(named, np.concatenate([background["sentence"], prefixes.sentence]))
    _write_sentences(run, sentence_rows(copy, named))
    prefixes.save(run)


def _copy_tables(run: MiningRun, parts: Sequence[Path], named: Ints) -> None:
    for name in SHARED:
        copy_file(parts[0] / TABLES[name].path(), run.path(name))
        run.made.append(run.path(name))
    prefixes = Prefixes.load(parts[0] / STATE / PREFIXES)
    prefixes.save(run)
    background = pq.read_table(run.path("background"))["sentence"].to_numpy()
    named = np.union1d(named, np.concatenate([background, prefixes.sentence]))
    _write_sentences(run, _sentences(parts, named))


def _write_sentences(run: MiningRun, rows: Iterable[Mapping[str, Any] | pa.Table]) -> None:
    parts = write_sentences(run.directory, rows, provenance=run.provenance)
    run.made += [run.path("sentences", part) for part in range(parts)]


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
