"""The first stages after the text: the text's own tables, and triggers and activity of every layer. Nothing depends on
when, how often or by how many processes they run.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from mnemoscope.foundation.files import copy_file, make_folder
from mnemoscope.mining.mining_run import MiningRun, columns_of
from mnemoscope.mining.passes.prefix_pass import PREFIXES, Prefixes
from mnemoscope.mining.text.batch_loader import background_table, sentence_rows, token_table
from mnemoscope.mining.text.trigger_table import layer_triggers

SHARED = ("vocabulary", "tokens", "background")
"""Tables that the parts of one plan have in common."""

Ints = NDArray[np.int64]


def write_text_tables(run: MiningRun) -> None:
    """Writes vocabulary, tokens, background, the sentences that tables name, routing, and the list of prefixes;
    releases the tokenized text. Raises MiningError without a text, PartsDiffer, StoreFailed.
    """
    sentences: list[Ints] = []
    routing: list[Mapping[str, NDArray[Any]]] = []
    for layer in run.plan.layers:
        state = run.layer_state(layer)
        sentences.append(state.named_sentences())
        routing += [counted.columns(layer) for counted in state.routing.values()]
    named = np.unique(np.concatenate(sentences))
    if run.copy is not None:
        prefixes = _write_tables(run, run.copy, named)
    elif run.parts:
        prefixes = _copy_tables(run, run.parts, named)
    else:
        raise MiningError("the text tables are made of the tokenized text, which was not given")
    prefixes.save(run)
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


def _write_tables(run: MiningRun, copy: TokenizedCorpus, named: Ints) -> Prefixes:
    text, raw = run.model.vocabulary()
    prefixes = Prefixes.choose(copy, count=run.plan.prefixes, seed=run.plan.seed, reading=run.model.reading)
    background = background_table(copy, run.plan, run.model.reading)
    run.write("vocabulary", {"token": np.arange(len(text), dtype=np.int32), "text": text, "bytes": raw})
    run.write("tokens", token_table(copy, run.model.sizes.vocabulary))
    run.write("background", background)
    named = np.union1d(named, np.concatenate([background["sentence"], prefixes.sentence]))
    write_sentences(run.directory, sentence_rows(copy, named), provenance=run.provenance)
    copy.release()
    return prefixes


def _copy_tables(run: MiningRun, parts: Sequence[Path], named: Ints) -> Prefixes:
    for name in SHARED:
        copy_file(parts[0] / TABLES[name].path(), run.path(name))
    prefixes = Prefixes.load(parts[0] / STATE / PREFIXES)
    background = pq.read_table(run.path("background"))["sentence"].to_numpy()
    named = np.union1d(named, np.concatenate([background, prefixes.sentence]))
    make_folder(run.directory / "sentences")
    write_sentences(run.directory, _sentences(parts, named), provenance=run.provenance)
    return prefixes


def _sentences(parts: Sequence[Path], named: Ints) -> Iterator[pa.Table]:
    """The named sentences of all parts, each once, ascending, in chunks."""
    wanted = pa.array(named)
    tables = [
        pq.read_table(path).filter(pc.is_in(pc.field("sentence"), wanted))
        for part in parts
        for path in sorted((part / "sentences").glob("part-*.parquet"))
    ]
    rows = pa.concat_tables(tables)
    ids, firsts = np.unique(rows["sentence"].to_numpy(), return_index=True)
    if len(ids) != len(named):
        raise PartsDiffer(f"the parts lack {len(named) - len(ids)} sentences that their triggers name; mine them again")
    for start in range(0, len(firsts), 8192):
        yield rows.take(pa.array(firsts[start : start + 8192])).combine_chunks()
