"""Builds the index file from an atlas's tables. Annotations, which change, are not indexed.

Memory holds a few numbers for every trigger and for every word of their sentences.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.formatting import show_token
from mnemoscope.foundation.progress import Progress
from mnemoscope.search.arrays import write_arrays, write_rows
from mnemoscope.search.database import BOTTOM, CONTEXT, DEMOTES, FIRES, FULL_TEXT, PROMOTES, TABLES, TOP, token_type
from mnemoscope.search.postings import pack
from mnemoscope.search.stretches import Stretches, WordRows
from mnemoscope.search.text import prepare
from mnemoscope.search.tokens import sort_keys

_PRAGMAS = (
    "page_size=8192",
    "journal_mode=OFF",  # an interrupted build is discarded
    "synchronous=OFF",
    "locking_mode=EXCLUSIVE",
    "cache_size=-65536",
    "temp_store=FILE",
)
_BATCH_SIZE = 20_000
_SIDES = ("top", "bottom")
"""Column prefixes, in the order of TOP and BOTTOM."""


def write_index(atlas: Atlas, path: Path, *, about: dict[str, str], progress: Progress) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        database.executescript(TABLES)
        for table in FULL_TEXT:
            database.execute(f"INSERT INTO {table}({table}, rank) VALUES ('hashsize', {1 << 25})")
        database.execute("BEGIN")
        first = _write_layers(database, atlas)
        _write_vocabulary(database, atlas)
        spaced = _write_triggers(database, atlas, first, progress)
        _write_fires(database, atlas, first)
        lacking = [] if _write_values(database, atlas, first) else ["values", "bottom"]
        lacking += [] if _write_patterns(database, atlas, first) else ["patterns"]
        facts = {**about, "spaced": str(int(spaced)), "lacking": ",".join(lacking)}
        database.executemany("INSERT INTO about VALUES (?, ?)", facts.items())
        database.execute("COMMIT")
        for table in FULL_TEXT:
            database.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")
        database.execute("ANALYZE")


def _write_layers(database: sqlite3.Connection, atlas: Atlas) -> dict[int, int]:
    first, at = {}, 0
    for layer in atlas.layers:
        first[layer] = at
        database.execute("INSERT INTO layers VALUES (?, ?, ?)", (layer, at, atlas.memories(layer)))
        at += atlas.memories(layer)
    return first


def _write_vocabulary(database: sqlite3.Connection, atlas: Atlas) -> None:
    texts = atlas.vocabulary.texts
    counts = dict(atlas.table("tokens").select("token", "count").iter_rows())
    database.executemany(
        "INSERT INTO vocabulary VALUES (?, ?, ?, ?, ?)",
        (
            (token, text, show_token(text) if text else "", text.strip().casefold(), counts.get(token, 0))
            for token, text in enumerate(texts)
        ),
    )
    database.executemany(
        "INSERT INTO token_text (rowid, text) VALUES (?, ?)", ((i, prepare(text)) for i, text in enumerate(texts))
    )


def _write_triggers(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int], progress: Progress) -> bool:
    """Returns whether tokens include the spaces between words."""
    prefixes = pl.concat([_find_prefixes(atlas, layer, first[layer]) for layer in atlas.layers]).sort("rank", "memory")
    trigger = pl.int_range(prefixes.height, dtype=pl.Int64).alias("trigger")
    by_place = prefixes.select("sentence", "position", trigger).sort("sentence", "position", "trigger")
    ids, sizes = np.unique(by_place["sentence"].to_numpy(), return_counts=True)
    positions, trigger_of = (by_place[name].to_numpy() for name in ("position", "trigger"))
    rows, spaced, done = None, True, 0
    made: list[tuple[Any, Any]] = []
    for at in range(0, len(ids), _BATCH_SIZE):
        some = atlas.sentences(ids[at : at + _BATCH_SIZE].tolist(), columns=["sentence", "text", "tokens"])
        own = sizes[at : at + some.height]
        ends_at = positions[done : done + int(own.sum())].astype(np.int64)
        tokens, starts = _write_sentences(database, atlas, some, ends_at, own)
        if rows is None:
            spaced = atlas.vocabulary.carries_spaces(some.head(1_000))
            rows = WordRows(atlas.vocabulary.raw, spaced=spaced)
        made.append(rows.add(tokens, starts, np.repeat(np.arange(some.height), own), ends_at))
        done += len(ends_at)
        progress("index", done, prefixes.height, "prefixes")
    if rows is not None:
        first_places, last_places = (np.concatenate(pieces) for pieces in zip(*made, strict=True))
        _write_words(database, rows.finish(), prefixes, trigger_of, first_places, last_places)
    return spaced


def _find_prefixes(atlas: Atlas, layer: int, first: int) -> pl.DataFrame:
    """The best trigger of each prefix group of a layer: rank, memory (number over all layers), sentence, position."""
    columns = ["memory", "rank", "prefix_group", "sentence", "position"]
    best = atlas.best_triggers(layer, None, columns=columns).filter(pl.col("rank") == pl.col("prefix_group"))
    memory = _number_memories(atlas, layer, best["memory"], first)
    return best.select("rank", memory, "sentence", "position")


def _number_memories(atlas: Atlas, layer: int, memories: pl.Series, first: int) -> pl.Series:
    if not memories.is_between(0, atlas.memories(layer) - 1).all():
        raise AtlasDamaged(f"{atlas.path}: a table names a memory that layer {layer} does not have")
    return memories.cast(pl.Int64) + first


def _write_sentences(
    database: sqlite3.Connection, atlas: Atlas, some: pl.DataFrame, positions: NDArray[np.int64], sizes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Writes the tokens of these sentences' prefixes, of which each sentence has `sizes`. Returns the tokens of all
    sentences, each up to its last prefix, and where each starts.
    """
    raw = len(atlas.vocabulary.raw)
    tokens, lengths = some["tokens"].explode().drop_nulls().to_numpy(), some["tokens"].list.len().to_numpy()
    if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < raw):
        raise AtlasDamaged(f"{atlas.path}: a sentence has a token beyond the vocabulary")
    own = np.cumsum(sizes) - sizes
    longest = np.maximum.reduceat(positions, own) + 1
    first = np.maximum(0, np.minimum.reduceat(positions, own) - (CONTEXT - 1))
    if np.any(longest > lengths) or int(positions.min()) < 0:
        raise AtlasDamaged(f"{atlas.path}: a trigger lies beyond the end of its sentence")
    kind = token_type(raw)
    tokens, ends = tokens.astype(kind), np.cumsum(lengths, dtype=np.int64)
    data, begins = tokens.tobytes(), ends - lengths
    bytes_at = [((begins + some) * kind.itemsize).tolist() for some in (first, longest)]
    each = (data[begin:end] for begin, end in zip(*bytes_at, strict=True))
    stored = zip(some["sentence"].to_list(), first.tolist(), each, strict=True)
    database.executemany("INSERT INTO sentences VALUES (?, ?, ?)", stored)
    starts = np.cumsum(longest) - longest
    kept = np.arange(int(longest.sum())) + np.repeat(begins - starts, longest)
    return tokens[kept], starts


def _write_words(
    database: sqlite3.Connection,
    stretches: Stretches,
    prefixes: pl.DataFrame,
    trigger: NDArray[Any],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> None:
    """`trigger`, `first` and `last` are per prefix."""
    numbers = range(len(stretches.words))
    database.executemany("INSERT INTO words VALUES (?, ?)", zip(stretches.words, numbers, strict=True))
    packed, ends = pack(stretches.pairs, len(stretches.words))
    del stretches  # the largest object of the build
    write_arrays(database, {"packed": packed, "bytes": np.diff(ends, prepend=0)})
    del packed
    order = np.argsort(last, kind="stable")
    arrays = {
        "last": last[order],
        "words": (last - first + 1)[order],
        "trigger": trigger[order],
        "memory": prefixes["memory"].to_numpy(),
        "rank": prefixes["rank"].to_numpy(),
        "sentence": prefixes["sentence"].to_numpy(),
        "position": prefixes["position"].to_numpy(),
    }
    write_arrays(database, arrays)


def _write_fires(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> None:
    columns = ["memory", "rank", "token"]
    pieces = []
    for layer in atlas.layers:
        triggers = atlas.best_triggers(layer, None, columns=columns).group_by("token", "memory")
        counted = triggers.agg(pl.len().alias("triggers"), pl.col("rank").min())
        pieces.append(counted.with_columns(_number_memories(atlas, layer, counted["memory"], first[layer])))
    rows = pl.concat(pieces)
    _write_sorted(database, FIRES, {name: rows[name].to_numpy() for name in rows.columns})


def _write_sorted(database: sqlite3.Connection, kind: str, columns: dict[str, NDArray[Any]]) -> None:
    order = np.lexsort((*sort_keys(kind, columns), columns["token"]))
    write_rows(database, kind, columns["token"][order], {n: c[order] for n, c in columns.items() if n != "token"})


def _write_values(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> bool:
    """Writes the top and bottom tokens of each value; False for a part, which has no values yet."""
    if atlas.manifest.part is not None:
        return False
    texts = [prepare(text) for text in atlas.vocabulary.texts]
    rows_of: dict[str, list[pl.DataFrame]] = {PROMOTES: [], DEMOTES: []}
    for layer in atlas.layers:
        values = atlas.table("values", layer=layer)
        memories = _number_memories(atlas, layer, values["memory"], first[layer])
        tokens = [_matrix(values[f"{side}_tokens"], np.int64) for side in _SIDES]
        scores = [_matrix(values[f"{side}_scores"], np.float32) for side in _SIDES]
        blobs = ([row.tobytes() for row in ids.astype("<i4")] for ids in tokens)
        database.executemany("INSERT INTO value_tokens VALUES (?, ?, ?)", zip(memories.to_list(), *blobs, strict=True))
        lists = (["\n".join([texts[token] for token in row]) for row in ids.tolist()] for ids in tokens)
        database.executemany(
            "INSERT INTO value_text (rowid, top, bottom) VALUES (?, ?, ?)", zip(memories.to_list(), *lists, strict=True)
        )
        largest = values["max_probability"].to_numpy().astype(np.float64)[:, None]
        top = scores[TOP].astype(np.float64)
        likely = {TOP: _round_mantissa(largest * np.exp(top - top[:, :1]))}
        for side, kind in ((TOP, PROMOTES), (BOTTOM, DEMOTES)):
            every = {
                "token": tokens[side].reshape(-1),
                "memory": np.repeat(memories.to_numpy(), tokens[side].shape[1]),
                "rank": np.tile(np.arange(tokens[side].shape[1]), len(memories)),
                "score": scores[side].reshape(-1),
            } | ({"probability": likely[side].reshape(-1)} if side in likely else {})
            rows_of[kind].append(pl.DataFrame(every).unique(["token", "memory"], keep="first", maintain_order=True))
    for kind, pieces in rows_of.items():
        rows = pl.concat(pieces)
        _write_sorted(database, kind, {name: rows[name].to_numpy() for name in rows.columns})
    return True


def _round_mantissa(values: Any) -> Any:
    """Rounds to 20 bits of mantissa, so that values that differ by float32 noise rank as equal."""
    fraction, power = np.frexp(values)
    return np.ldexp(np.round(fraction * 2.0**20) / 2.0**20, power)


def _matrix(column: pl.Series, kind: Any) -> Any:
    flat = column.explode().to_numpy().astype(kind)
    if len(column) == 0 or flat.size % len(column):
        raise AtlasDamaged("the values' lists of tokens are not all of one length; run `mnemoscope verify`")
    return flat.reshape(len(column), -1)


def _write_patterns(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> bool:
    """False if there are no patterns yet."""
    if not atlas.has("patterns"):
        return False
    table = atlas.table("patterns").select("layer", "memory", "kind", "description", "triggers")
    rows = [
        (number, first[layer] + memory, kind, description, len(triggers))
        for number, (layer, memory, kind, description, triggers) in enumerate(table.iter_rows())
        if layer in first
    ]
    database.executemany("INSERT INTO patterns VALUES (?, ?, ?, ?, ?)", rows)
    database.executemany(
        "INSERT INTO pattern_text (rowid, description) VALUES (?, ?)", ((row[0], prepare(row[3])) for row in rows)
    )
    return True
