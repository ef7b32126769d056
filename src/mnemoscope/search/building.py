"""The index made from an atlas's tables, in one file that the caller puts in its place.

Reads what mining and `analyze` wrote; annotations, which change all the time, are not in it. The time goes into the
full-text table of the triggers' prefixes. Their sentences wait in a file beside the index, so that memory does not grow
with the text: it holds a few numbers per trigger.
"""

import sqlite3
import tempfile
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.formatting import show_token
from mnemoscope.progress import Progress
from mnemoscope.search.database import BOTTOM, CONTEXT, FULL_TEXT, RANK_BITS, TABLES, TOP, token_type, window_text
from mnemoscope.search.text import prepare

_PRAGMAS = (
    "page_size=8192",
    "journal_mode=OFF",  # a build that stops is thrown away
    "synchronous=OFF",
    "locking_mode=EXCLUSIVE",
    "cache_size=-65536",
    "temp_store=FILE",
)
_SENTENCES, _PREFIXES = 50_000, 20_000
"""How many are handled at a time."""
_SIDES = ("top", "bottom")
"""The names of the sides TOP and BOTTOM."""


def write_index(atlas: Atlas, path: Path, *, about: dict[str, str], progress: Progress) -> None:
    """Writes the whole index into the new file `path`; raises sqlite3.Error, and what reading the atlas raises."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        database.executescript(TABLES)
        for table in FULL_TEXT:
            database.execute(f"INSERT INTO {table}({table}, rank) VALUES ('hashsize', {1 << 25})")
        database.execute("BEGIN")
        first = _write_layers(database, atlas)
        _write_vocabulary(database, atlas)
        with tempfile.TemporaryFile(dir=path.parent) as file:
            spaced = _write_triggers(database, atlas, first, file, progress)
        for layer in atlas.layers:
            _write_fires(database, atlas, layer, first[layer])
        lacking = [] if _write_values(database, atlas, first) else ["values", "bottom"]
        lacking += [] if _write_patterns(database, atlas, first) else ["patterns"]
        said = {**about, "spaced": str(int(spaced)), "lacking": ",".join(lacking)}
        database.executemany("INSERT INTO about VALUES (?, ?)", said.items())
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
    """The tokens and their words."""
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


def _write_triggers(
    database: sqlite3.Connection, atlas: Atlas, first: dict[int, int], file: IO[bytes], progress: Progress
) -> bool:
    """Prefixes and their sentences, whose tokens go through `file`; returns whether tokens bring their spaces along."""
    found = pl.concat([_find_prefixes(atlas, layer, first[layer]) for layer in atlas.layers]).sort("trigger")
    ids, raw, done = found["sentence"].unique().sort(), atlas.vocabulary.raw, 0
    spaced, ends = _write_sentences(database, atlas, ids.to_list(), file)
    tokens = np.memmap(file, token_type(len(raw)), mode="r").view(np.ndarray) if ends[-1] else np.empty(0, np.int32)
    for rows in found.iter_slices(_PREFIXES):
        places = ids.search_sorted(rows["sentence"]).to_numpy()
        starts, last = ends[places], ends[places] + rows["position"].to_numpy()
        if not np.all(last < ends[places + 1]):
            raise AtlasDamaged(f"{atlas.path}: a trigger lies beyond the end of its sentence")
        begin = np.maximum(starts, last - (CONTEXT - 1))
        texts = (
            window_text(tokens[a : b + 1].tolist(), raw, spaced=spaced, cut=cut)
            for a, b, cut in zip(begin.tolist(), last.tolist(), (begin > starts).tolist(), strict=True)
        )
        database.executemany("INSERT INTO prefixes VALUES (?, ?, ?)", rows.iter_rows())
        database.executemany(
            "INSERT INTO trigger_text (rowid, prefix) VALUES (?, ?)",
            zip(rows["trigger"].to_list(), map(prepare, texts), strict=True),
        )
        done += rows.height
        progress("index", done, found.height, "prefixes")
    return spaced


def _find_prefixes(atlas: Atlas, layer: int, first: int) -> pl.DataFrame:
    """The different positive prefixes of a layer: trigger (its number), sentence, position.

    Of the triggers with the same prefix only the best is taken, since the paper counts a prefix once.
    """
    columns = ["memory", "rank", "prefix_group", "sentence", "position"]
    best = atlas.best_triggers(layer, None, columns=columns).filter(pl.col("rank") == pl.col("prefix_group"))
    rank, memory = (pl.col(name).cast(pl.Int64) for name in ("rank", "memory"))
    trigger = rank * (1 << RANK_BITS) + first + memory
    return best.select(trigger.alias("trigger"), "sentence", "position")


def _write_sentences(
    database: sqlite3.Connection, atlas: Atlas, ids: list[int], file: IO[bytes]
) -> tuple[bool, NDArray[np.int64]]:
    """The tokens of these sentences, also into `file`.

    Returns whether tokens bring the spaces between words along, and where each sentence ends in the file.
    """
    spaced, ends, most = True, [np.zeros(1, np.int64)], len(atlas.vocabulary.raw)
    for at in range(0, len(ids), _SENTENCES):
        rows = atlas.sentences(ids[at : at + _SENTENCES], columns=["sentence", "text", "tokens"])
        if at == 0:
            spaced = atlas.vocabulary.carries_spaces(rows.head(1_000))
        tokens = rows["tokens"].explode().drop_nulls().to_numpy()
        if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < most):
            raise AtlasDamaged(f"{atlas.path}: a sentence has a token beyond the vocabulary")
        kind = token_type(most)
        data = tokens.astype(kind).tobytes()
        file.write(data)
        own = rows["tokens"].list.len().cast(pl.Int64).cum_sum().to_numpy()
        ends.append(ends[-1][-1] + own)
        each = [data[begin:end] for begin, end in pairwise([0, *(own * kind.itemsize).tolist()])]
        database.executemany("INSERT INTO sentences VALUES (?, ?)", zip(rows["sentence"].to_list(), each, strict=True))
    file.flush()
    return spaced, np.concatenate(ends)


def _write_fires(database: sqlite3.Connection, atlas: Atlas, layer: int, first: int) -> None:
    """How many positive triggers of each memory end in each token."""
    rows = (
        atlas.best_triggers(layer, None, columns=["memory", "rank", "token"])
        .group_by("token", "memory")
        .agg(pl.len().alias("triggers"), pl.col("rank").min())
        .sort("token", "memory")
        .select("token", pl.col("memory") + first, "triggers", "rank")
    )
    database.executemany("INSERT INTO fires VALUES (?, ?, ?, ?)", rows.iter_rows())


def _write_values(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> bool:
    """The tokens that every value raises and lowers most; False in a part, which has no values yet."""
    if atlas.manifest.part is not None:
        return False
    texts = [prepare(text) for text in atlas.vocabulary.texts]
    for layer in atlas.layers:
        values = atlas.table("values", layer=layer)
        memories = values["memory"].cast(pl.Int64) + first[layer]
        tokens = [_matrix(values[f"{side}_tokens"], np.int64) for side in _SIDES]
        scores = [_matrix(values[f"{side}_scores"], np.float64) for side in _SIDES]
        blobs = ([row.tobytes() for row in ids.astype("<i4")] for ids in tokens)
        database.executemany("INSERT INTO value_tokens VALUES (?, ?, ?)", zip(memories.to_list(), *blobs, strict=True))
        lists = (["\n".join([texts[token] for token in row]) for row in ids.tolist()] for ids in tokens)
        database.executemany(
            "INSERT INTO value_text (rowid, top, bottom) VALUES (?, ?, ?)", zip(memories.to_list(), *lists, strict=True)
        )
        largest = values["max_probability"].to_numpy().astype(np.float64)[:, None]
        likely = {TOP: _steady(largest * np.exp(scores[TOP] - scores[TOP][:, :1]))}
        for side in (TOP, BOTTOM):
            every = pl.DataFrame(
                {
                    "token": tokens[side].reshape(-1),
                    "side": side,
                    "memory": np.repeat(memories.to_numpy(), tokens[side].shape[1]),
                    "rank": np.tile(np.arange(tokens[side].shape[1]), len(memories)),
                    "probability": likely[side].reshape(-1) if side in likely else None,
                    "score": scores[side].reshape(-1),
                }
            )
            every = every.unique(["token", "memory"], keep="first", maintain_order=True).sort("token", "memory")
            rows = every.with_columns(pl.col("probability").cast(pl.Float64).fill_nan(None)).iter_rows()
            database.executemany("INSERT INTO says VALUES (?, ?, ?, ?, ?, ?)", rows)
    return True


def _steady(values: Any) -> Any:
    """The numbers to six digits, so that those that differ by float32's noise rank as equal."""
    fraction, power = np.frexp(values)
    return np.ldexp(np.round(fraction * 2.0**20) / 2.0**20, power)


def _matrix(column: pl.Series, kind: Any) -> Any:
    """A column of lists of one length as an array of two axes."""
    flat = column.explode().to_numpy().astype(kind)
    if len(column) == 0 or flat.size % len(column):
        raise AtlasDamaged("the values' lists of tokens are not all of one length; run `mnemoscope verify`")
    return flat.reshape(len(column), -1)


def _write_patterns(database: sqlite3.Connection, atlas: Atlas, first: dict[int, int]) -> bool:
    """The automatic patterns' descriptions; False where there are none yet."""
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
