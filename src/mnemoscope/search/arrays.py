"""Stores numeric arrays of the index as blobs, of the smallest type that holds them: whole arrays, and rows by token.

SQLite's rows of a few numbers would take three times the bytes.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

_PIECE_BYTES = 1 << 26


def narrow_type(numbers: NDArray[Any]) -> np.dtype[Any]:
    """The smallest little-endian unsigned integer or float type that holds the numbers exactly."""
    if numbers.dtype.kind == "f":
        with np.errstate(over="ignore"):
            short = numbers.astype("<f4")
        return short.dtype if np.array_equal(short, numbers, equal_nan=True) else np.dtype("<f8")
    return np.min_scalar_type(int(numbers.max(initial=0))).newbyteorder("<")


def write_arrays(database: sqlite3.Connection, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, numbers in arrays.items():
        data = numbers.astype(kind := narrow_type(numbers)).tobytes()
        for piece, begin in enumerate(range(0, max(1, len(data)), _PIECE_BYTES)):
            some = data[begin : begin + _PIECE_BYTES]
            row = (name, piece, kind.str, some, zlib.crc32(some))
            database.execute("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", row)


def read_arrays(database: sqlite3.Connection) -> dict[str, NDArray[Any]]:
    pieces_of: dict[str, tuple[str, list[bytes]]] = {}
    rows: Iterable[Any] = database.execute("SELECT name, type, data, checksum FROM arrays ORDER BY name, piece")
    for name, kind, data, checksum in rows:
        if zlib.crc32(data) != checksum:
            raise sqlite3.DatabaseError(f"array {name!r} is damaged")
        pieces_of.setdefault(name, (kind, []))[1].append(data)
    return {name: np.frombuffer(b"".join(pieces), kind) for name, (kind, pieces) in pieces_of.items()}


def write_rows(database: sqlite3.Connection, table: str, rows: pl.DataFrame) -> None:
    """One blob per token, which is a column of `rows`."""
    rows = rows.sort("token", maintain_order=True)
    columns = {name: rows[name].to_numpy() for name in rows.columns if name != "token"}
    packed = np.empty(rows.height, kind := np.dtype([(name, narrow_type(column)) for name, column in columns.items()]))
    for name, numbers in columns.items():
        packed[name] = numbers
    tokens, first = np.unique(rows["token"].to_numpy(), return_index=True)
    blobs = (some.tobytes() for some in np.split(packed, first[1:]))
    database.executemany(f"INSERT INTO {table} VALUES (?, ?)", zip(tokens.tolist(), blobs, strict=False))
    database.execute("INSERT INTO about VALUES (?, ?)", (table, json.dumps(kind.descr)))


def read_rows(database: sqlite3.Connection, table: str, which: str, parameters: Iterable[Any]) -> NDArray[Any]:
    """The rows, by token, of the tokens that the SQL `which` selects. Raises sqlite3.DatabaseError."""
    types = database.execute("SELECT said FROM about WHERE name = ?", (table,)).fetchone()
    if types is None:
        return np.empty(0, [("memory", "<u1"), ("rank", "<u1"), ("probability", "<f8"), ("score", "<f4")])
    blobs = database.execute(f"SELECT rows FROM {table} WHERE token IN ({which}) ORDER BY token", list(parameters))
    data = b"".join([rows for (rows,) in blobs])
    kind = np.dtype([(name, type) for name, type in json.loads(types[0])])
    if len(data) % kind.itemsize:
        raise sqlite3.DatabaseError(f"table {table!r} is damaged")
    return np.frombuffer(data, kind)
