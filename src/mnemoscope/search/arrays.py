"""Numbers of the index that are read many at a time, as blobs: whole arrays, and the rows of one token.

SQLite takes three times as much for a row of a few numbers as the numbers themselves take. Every number is stored in as
few bytes as all of its kind need; what the types are stands beside them. Knows nothing of what the numbers mean.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 26
"""Bytes of an array in one row of the table `arrays`."""


def narrow_type(numbers: NDArray[Any]) -> np.dtype[Any]:
    """The smallest type, little end first, that holds exactly these numbers: none below zero, or all fractions."""
    if numbers.dtype.kind == "f":
        with np.errstate(over="ignore"):
            short = numbers.astype("<f4")
        return short.dtype if np.array_equal(short, numbers, equal_nan=True) else np.dtype("<f8")
    return np.min_scalar_type(int(numbers.max(initial=0))).newbyteorder("<")


def write_arrays(database: sqlite3.Connection, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Puts whole arrays into the table `arrays`, each in pieces with their checksums."""
    for name, numbers in arrays.items():
        data = numbers.astype(kind := narrow_type(numbers)).tobytes()
        for piece, begin in enumerate(range(0, max(1, len(data)), _PIECE)):
            some = data[begin : begin + _PIECE]
            row = (name, piece, kind.str, some, zlib.crc32(some))
            database.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)


def read_arrays(database: sqlite3.Connection) -> dict[str, NDArray[Any]]:
    """All arrays by name; raises sqlite3.DatabaseError for bytes that are not those that were written."""
    found: dict[str, tuple[str, list[bytes]]] = {}
    rows: Iterable[Any] = database.execute("SELECT name, type, data, checksum FROM arrays ORDER BY name, piece")
    for name, kind, data, checksum in rows:
        if zlib.crc32(data) != checksum:
            raise sqlite3.DatabaseError(f"array {name!r} is damaged")
        found.setdefault(name, (kind, []))[1].append(data)
    return {name: np.frombuffer(b"".join(pieces), kind) for name, (kind, pieces) in found.items()}


def write_rows(
    database: sqlite3.Connection, table: str, tokens: NDArray[Any], columns: Mapping[str, NDArray[Any]]
) -> None:
    """Puts rows into `table`, all of a token in one blob, in their order; `tokens` are sorted, one for every row."""
    kind = np.dtype([(name, narrow_type(numbers)) for name, numbers in columns.items()])
    rows = np.empty(len(tokens), kind)
    for name, numbers in columns.items():
        rows[name] = numbers
    own, first = np.unique(tokens, return_index=True)
    ends = [*first[1:].tolist(), len(rows)][: len(own)]
    blobs = (rows[begin:end].tobytes() for begin, end in zip(first.tolist(), ends, strict=True))
    database.executemany(f"INSERT INTO {table} VALUES (?, ?)", zip(own.tolist(), blobs, strict=True))
    database.execute("INSERT INTO about VALUES (?, ?)", (table, json.dumps(kind.descr)))


def read_rows(database: sqlite3.Connection, table: str, which: str, parameters: Iterable[Any]) -> NDArray[Any]:
    """The rows of the tokens that the SQL `which` names, by token; raises sqlite3.DatabaseError."""
    said = database.execute("SELECT said FROM about WHERE name = ?", (table,)).fetchone()
    if said is None:
        return np.empty(0, [("memory", "<u1"), ("rank", "<u1"), ("probability", "<f8"), ("score", "<f4")])
    found = database.execute(f"SELECT rows FROM {table} WHERE token IN ({which}) ORDER BY token", list(parameters))
    data = b"".join([rows for (rows,) in found])
    kind = np.dtype([(name, type) for name, type in json.loads(said[0])])
    if len(data) % kind.itemsize:
        raise sqlite3.DatabaseError(f"table {table!r} is damaged")
    return np.frombuffer(data, kind)
