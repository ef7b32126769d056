"""The file index.sqlite: its tables, its numbering of memories, and read-only connections.

The texts of triggers are in `place_text`, a row per place (a position in a sentence); places are numbered by the best
rank of their triggers, so that the first rows of an answer are the strongest. `arrays` has the memory, rank and place
of every trigger, and the sentence and position of every place. Full-text tables are contentless: displayed text is
rebuilt from `vocabulary` and `sentences`. The rows of a token in `fires`, `promotes` and `demotes` are one blob.
"""

import json
import os
import sqlite3
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.foundation.files import refuse_endless
from mnemoscope.foundation.memory_names import MemoryId, Numbering
from mnemoscope.search.text import TOKENIZER

VERSION = 6
FOLDER, NAME = "search", "index.sqlite"
_EVERY_MEMORY = (1 << 32) - 1
MOST_ROWS = 150_000
"""The most places that a search counts."""
FIRES, PROMOTES, DEMOTES = "fires", "promotes", "demotes"
"""The tables of memories by token."""
LABELS = {1: "label", -1: "label below zero"}
"""The kinds of what is in `patterns` from labels of a sign."""
_MAX_IDLE = 8

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of memories' numbers."""
EVERYWHERE: Ranges = ((0, _EVERY_MEMORY),)


def token_type(vocabulary: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<i4")


FULL_TEXT = {
    "place_text": "context, word",
    "value_text": "top, bottom",
    "token_text": "text",
    "pattern_text": "description, lead",
}
_OPTIONS = f"content='', columnsize=0, prefix='2', tokenize=\"{TOKENIZER}\""
TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, said TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE layers (layer INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL);
CREATE TABLE vocabulary (
  token INTEGER PRIMARY KEY, text TEXT NOT NULL, shown TEXT NOT NULL, folded TEXT NOT NULL, count INTEGER NOT NULL
);
CREATE TABLE sentences (sentence INTEGER PRIMARY KEY, tokens BLOB NOT NULL);
CREATE TABLE arrays (
  name TEXT, piece INTEGER, type TEXT NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (name, piece)
);
CREATE TABLE fires (token INTEGER PRIMARY KEY, rows BLOB NOT NULL);
CREATE TABLE promotes (token INTEGER PRIMARY KEY, rows BLOB NOT NULL);
CREATE TABLE demotes (token INTEGER PRIMARY KEY, rows BLOB NOT NULL);
CREATE TABLE value_tokens (memory INTEGER PRIMARY KEY, top BLOB NOT NULL, bottom BLOB NOT NULL);
CREATE TABLE patterns (
  pattern INTEGER PRIMARY KEY, memory INTEGER NOT NULL, kind TEXT NOT NULL, description TEXT NOT NULL,
  explained INTEGER NOT NULL
);
""" + "".join(f"CREATE VIRTUAL TABLE {name} USING fts5({columns}, {_OPTIONS});" for name, columns in FULL_TEXT.items())


class MemoryNumbering:
    """Numbers memories over all layers."""

    def __init__(self, layers: Sequence[tuple[int, int, int]], within: Callable[[int], Numbering]) -> None:
        """`layers` are (layer, first number, count); `within` returns the numbering of a layer."""
        self._within = within
        self._layers = {layer: (first, count) for layer, first, count in layers}
        self._firsts = sorted((first, layer) for layer, first, _ in layers)

    def id(self, number: int) -> MemoryId:
        first, layer = self._firsts[bisect_right(self._firsts, (number, 1 << 62)) - 1]
        return self._within(layer).name(layer, number - first)

    def number_of(self, layer: int, memory: int) -> int | None:
        """`memory` is a number within the layer; None if there is no such memory."""
        first, count = self._layers.get(layer, (0, 0))
        return first + memory if memory < count else None

    def ranges(self, layers: Sequence[int] | None) -> Ranges:
        """The numbers of these layers (None: all)."""
        if layers is None:
            return EVERYWHERE
        joined: list[tuple[int, int]] = []
        for first, count in (self._layers[layer] for layer in sorted(set(layers))):
            start = joined.pop()[0] if joined and joined[-1][1] + 1 == first else first
            joined.append((start, first + count - 1))
        return tuple(joined)


def rows_by_key(
    database: sqlite3.Connection, table: str, key: str, columns: str, keys: Sequence[int]
) -> dict[int, tuple[Any, ...]]:
    sql = f"SELECT {key}, {columns} FROM {table} WHERE {key} IN (SELECT value FROM json_each(?))"
    return {row[0]: row[1:] for row in database.execute(sql, (json.dumps(list(keys)),))}


def match_rows(
    database: sqlite3.Connection, table: str, column: str, expression: str, most: int = -1
) -> NDArray[np.int64]:
    """The first rows of a full-text table whose column matches."""
    sql = f"SELECT group_concat(rowid) FROM (SELECT rowid FROM {table} WHERE {table} MATCH ? LIMIT ?)"
    ((joined,),) = database.execute(sql, (f"{{{column}}} : {expression}", most))
    return np.fromstring(joined, np.int64, sep=",") if joined else np.empty(0, np.int64)


def lie_within(memories: NDArray[Any], within: Ranges) -> NDArray[np.bool_]:
    if within == EVERYWHERE:
        return np.ones(len(memories), np.bool_)
    inside = [(memories >= low) & (memories <= high) for low, high in within]
    return np.logical_or.reduce(inside) if inside else np.zeros(len(memories), np.bool_)


class Connections:
    """A pool of connections to one file. A forked process opens its own, since they would share a file offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._free: defaultdict[int, list[sqlite3.Connection]] = defaultdict(list)
        """By process."""
        self._lock = threading.Lock()
        self._closed = False
        self._made_in = os.getpid()

    @contextmanager
    def one(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise ValueError("the index is closed")
            free = self._free[os.getpid()]
            database = free.pop() if free else None
        database = database or connect(self.path)
        try:
            yield database
        finally:
            with self._lock:
                if keep := not self._closed and len(free) < _MAX_IDLE:
                    free.append(database)
            if not keep:
                database.close()

    @property
    def in_a_fork(self) -> bool:
        return self._made_in != os.getpid()

    def close(self) -> None:
        """Closes idle connections now, the others when they are returned."""
        with self._lock:
            self._closed = True
            free = self._free.pop(os.getpid(), [])
        for database in free:
            database.close()


def connect(path: Path) -> sqlite3.Connection:
    """A read-only connection; `immutable`, since a new index is another file."""
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA query_only=1")
    database.execute("PRAGMA cache_size=-2048")
    return database


def is_fresh(path: Path, about: dict[str, str]) -> bool:
    """Whether `path` is an index of its full length with the facts `about`; other damage is found while searching."""
    try:
        refuse_endless(path)
        size = path.stat().st_size
        with closing(connect(path)) as database:
            stored = dict(database.execute("SELECT name, said FROM about").fetchall())
            pages, page = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            database.execute("SELECT * FROM layers").fetchall()
    except (OSError, sqlite3.Error, UnicodeError):
        return False
    return pages * page == size and all(stored.get(name) == value for name, value in about.items())
