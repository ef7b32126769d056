"""Builds the index file from an atlas's tables. Annotations, which change, are not indexed.

Memory holds a few numbers for every trigger.
"""

import sqlite3
from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.formatting import show_token
from mnemoscope.foundation.progress import Progress
from mnemoscope.patterns.finding import leading_words
from mnemoscope.patterns.labels import NO_PATTERN, SHARED
from mnemoscope.search.arrays import write_arrays, write_rows
from mnemoscope.search.database import DEMOTES, FIRES, FULL_TEXT, LABELS, PROMOTES, TABLES, token_type
from mnemoscope.search.text import fold_token, prepare
from mnemoscope.search.windows import Windows

_PRAGMAS = (
    "page_size=8192",
    "journal_mode=OFF",  # an interrupted build is discarded
    "synchronous=OFF",
    "locking_mode=EXCLUSIVE",
    "cache_size=-65536",
    "temp_store=FILE",
)
_BATCH_SIZE = 20_000
_PROMOTES = BEST_TRIGGERS // 2
"""A clear token of the value says as much of a memory as a pattern of half of its triggers."""
_SIDES = {"top": PROMOTES, "bottom": DEMOTES}


def write_index(atlas: Atlas, path: Path, *, about: dict[str, str], progress: Progress) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        database.executescript(TABLES)
        for table in FULL_TEXT:
            database.execute(f"INSERT INTO {table}({table}, rank) VALUES ('hashsize', {1 << 25})")
        database.execute("BEGIN")
        first, at = dict[int, int](), 0
        for layer in atlas.layers:
            first[layer] = at
            database.execute("INSERT INTO layers VALUES (?, ?, ?)", (layer, at, atlas.memories(layer)))
            at += atlas.memories(layer)
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


def _write_vocabulary(database: sqlite3.Connection, atlas: Atlas) -> None:
    texts = atlas.vocabulary.texts
    counts = dict(atlas.table("tokens").select("token", "count").iter_rows())
    database.executemany(
        "INSERT INTO vocabulary VALUES (?, ?, ?, ?, ?)",
        (
            (token, text, show_token(text) if text else "", fold_token(text), counts.get(token, 0))
            for token, text in enumerate(texts)
        ),
    )
    database.executemany(
        "INSERT INTO token_text (rowid, text) VALUES (?, ?)", ((i, prepare(text)) for i, text in enumerate(texts))
    )


def _write_triggers(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int], progress: Progress) -> bool:
    """Returns whether tokens include the spaces between words."""
    names = ["memory", "rank", "prefix_group", "sentence", "position"]
    pieces = []
    for layer in atlas.layers:
        # The best trigger of each prefix group.
        best = atlas.best_triggers(layer, None, columns=names).filter(pl.col("rank") == pl.col("prefix_group"))
        memory = _number_memories(atlas, layer, best["memory"], first[layer])
        pieces.append(best.select("rank", memory, "sentence", "position"))
    prefixes = pl.concat(pieces).sort("rank", "memory")
    places = prefixes.select("sentence", "position").unique(maintain_order=True).with_row_index("place")
    place = prefixes.join(places, on=["sentence", "position"], how="left", maintain_order="left")["place"]
    spaced = _write_sentences(database, atlas, places)
    windows, left = (
        Windows(atlas.vocabulary.raw, spaced=spaced, reading=atlas.reading),
        np.zeros(places.height, np.uint8),
    )
    for at in range(0, places.height, _BATCH_SIZE):
        some = windows.read(database, places[at : at + _BATCH_SIZE].select("sentence", "position").rows())
        rows = ((at + i, prepare(window.prefix), prepare(window.word)) for i, window in enumerate(some))
        database.executemany("INSERT INTO place_text (rowid, context, word) VALUES (?, ?, ?)", rows)
        left[at : at + len(some)] = [window.left for window in some]
        progress("index", at + len(some), places.height, "places")
    columns = {"memory": prefixes["memory"], "rank": prefixes["rank"], "place": place}
    columns |= {"sentence": places["sentence"], "position": places["position"]}
    write_arrays(database, {"left": left, **{name: column.to_numpy() for name, column in columns.items()}})
    return spaced


def _number_memories(atlas: Atlas, layer: int, memories: pl.Series, first: int) -> pl.Series:
    """Memories of a layer by their numbers over all layers."""
    if not memories.is_between(0, atlas.memories(layer) - 1).all():
        raise AtlasDamaged(f"{atlas.path}: a table names a memory that layer {layer} does not have")
    return memories.cast(pl.Int64) + first


def _write_sentences(database: sqlite3.Connection, atlas: Atlas, places: pl.DataFrame) -> bool:
    """Writes the tokens of the sentences with these places. Returns whether tokens include the spaces between words."""
    ends = places.group_by("sentence").agg(pl.col("position").max()).sort("sentence")
    raw = len(atlas.vocabulary.raw)
    spaced, kind = True, token_type(raw)
    for at in range(0, ends.height, _BATCH_SIZE):
        batch = ends[at : at + _BATCH_SIZE]
        some = atlas.sentences(batch["sentence"].to_list(), columns=["sentence", "text", "tokens"])
        tokens, lengths = some["tokens"].explode().drop_nulls().to_numpy(), some["tokens"].list.len()
        if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < raw):
            raise AtlasDamaged(f"{atlas.path}: a sentence has a token beyond the vocabulary")
        if (batch["position"] >= lengths).any():
            raise AtlasDamaged(f"{atlas.path}: a trigger lies beyond the end of its sentence")
        if not at:
            spaced = atlas.vocabulary.carries_spaces(some.head(1_000))
        pieces = np.split(tokens.astype(kind), np.cumsum(lengths.to_numpy())[:-1])
        rows = zip(some["sentence"].to_list(), (piece.tobytes() for piece in pieces), strict=True)
        database.executemany("INSERT INTO sentences VALUES (?, ?)", rows)
    return spaced


def _write_fires(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> None:
    columns = ["memory", "rank", "token"]
    pieces = []
    for layer in atlas.layers:
        triggers = atlas.best_triggers(layer, None, columns=columns).group_by("token", "memory")
        counted = triggers.agg(pl.len().alias("triggers"), pl.col("rank").min())
        pieces.append(counted.with_columns(_number_memories(atlas, layer, counted["memory"], first[layer])))
    write_rows(database, FIRES, pl.concat(pieces))


def _write_values(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> bool:
    """Writes the top and bottom tokens of each value; False for a part, which has none yet, and an encoder alone."""
    if atlas.manifest.part is not None or atlas.manifest.keys_only:
        return False
    texts = [prepare(text) for text in atlas.vocabulary.texts]
    rows_of: dict[str, list[pl.DataFrame]] = {PROMOTES: [], DEMOTES: []}
    for layer in atlas.layers:
        values = atlas.table("values", layer=layer)
        memories = _number_memories(atlas, layer, values["memory"], first[layer])
        tokens = {side: _matrix(values[f"{side}_tokens"], np.int64) for side in _SIDES}
        scores = {side: _matrix(values[f"{side}_scores"], np.float32) for side in _SIDES}
        blobs = ([row.tobytes() for row in ids.astype("<i4")] for ids in tokens.values())
        database.executemany("INSERT INTO value_tokens VALUES (?, ?, ?)", zip(memories.to_list(), *blobs, strict=True))
        lists = (["\n".join([texts[token] for token in row]) for row in ids.tolist()] for ids in tokens.values())
        database.executemany(
            "INSERT INTO value_text (rowid, top, bottom) VALUES (?, ?, ?)", zip(memories.to_list(), *lists, strict=True)
        )
        largest = values["max_probability"].to_numpy().astype(np.float64)[:, None]
        top = scores["top"].astype(np.float64)
        # Of 20 bits of mantissa, so that values that differ by float32 noise rank as equal.
        fraction, power = np.frexp(largest * np.exp(top - top[:, :1]))
        likely = np.ldexp(np.round(fraction * 2.0**20) / 2.0**20, power)
        for side, kind in _SIDES.items():
            every = {
                "token": tokens[side].reshape(-1),
                "memory": np.repeat(memories.to_numpy(), tokens[side].shape[1]),
                "rank": np.tile(np.arange(tokens[side].shape[1]), len(memories)),
                "score": scores[side].reshape(-1),
            } | ({"probability": likely.reshape(-1)} if side == "top" else {})
            rows_of[kind].append(pl.DataFrame(every).unique(["token", "memory"], keep="first", maintain_order=True))
    for kind, pieces in rows_of.items():
        write_rows(database, kind, pl.concat(pieces))
    return True


def _matrix(column: pl.Series, kind: Any) -> Any:
    flat = column.explode().to_numpy().astype(kind)
    if len(column) == 0 or flat.size % len(column):
        raise AtlasDamaged("the values' lists of tokens are not all of one length; run `mnemoscope verify`")
    return flat.reshape(len(column), -1)


def _write_patterns(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> bool:
    """Patterns, and what labels say beside them. False if there are no patterns yet."""
    if not atlas.has("patterns"):
        return False
    table = atlas.table("patterns").select("layer", "memory", "kind", "description", "triggers")
    rows = [
        (number, first[layer] + memory, kind, description, len(triggers))
        for number, (layer, memory, kind, description, triggers) in enumerate(table.iter_rows())
        if layer in first
    ]
    described = {memory for _, memory, *_ in rows}
    for memory, kind, text, weight in _read_labels(atlas, first, described):
        rows.append((len(rows), memory, kind, text, weight))
    database.executemany("INSERT INTO patterns VALUES (?, ?, ?, ?, ?)", rows)
    database.executemany(
        "INSERT INTO pattern_text (rowid, description, lead) VALUES (?, ?, ?)",
        ((row[0], prepare(row[3]), prepare(leading_words(row[3]))) for row in rows),
    )
    return True


def _read_labels(atlas: Atlas, first: dict[int, int], described: Container[int]) -> Iterator[tuple[int, str, str, int]]:
    """Memory, kind, text and weight of what labels say that no pattern does: the token that a feature's triggers share,
    and the one that its value promotes.
    """
    names = ["layer", "memory", "sign", "label", "promotes"]
    rows = atlas.table("labels", columns=names).select(names).rows() if atlas.has("labels") else ()
    for layer, number, sign, label, promotes in rows:
        memory = first[layer] + number
        shared, _, token = label.rpartition("; promotes ") if promotes else (label, "", "")
        if shared != NO_PATTERN and (sign < 0 or memory not in described):
            yield memory, LABELS[sign], shared, SHARED
        if promotes:
            yield memory, LABELS[sign], f"promotes {token}", _PROMOTES
