"""Writes the tables of an atlas: the same rows give the same bytes. Knows nothing of what the tables mean."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas.schema import SENTENCES_PER_PART, TABLES, Provenance, metadata
from mnemoscope.foundation.files import write_bytes


def write_table(path: Path, table: pa.Table | Mapping[str, Any], *, name: str, provenance: Provenance) -> None:
    """Writes rows (a pyarrow table, or columns: lists, numpy or pyarrow arrays) of table `name`; the same rows give the
    same bytes. Masked entries are nulls, and an array of two axes is one list per row. Columns beyond the schema follow
    the known ones.
    """
    kind = TABLES[name]
    columns = kind.columns_beside(table.column_names if isinstance(table, pa.Table) else list(table))
    _write_rows(path, _fit(table, columns, name), kind.row_group, metadata(name, provenance))


def write_free_table(
    path: Path, table: pa.Table, *, name: str, provenance: Provenance, columns: pa.Schema | None = None
) -> None:
    """Writes a table outside of the format, byte for byte reproducibly; `columns` come first and have these types."""
    texts = [
        pa.field(field.name, pa.string() if pa.types.is_large_string(field.type) else field.type)
        for field in table.schema
    ]
    rows = _fit(table.cast(pa.schema(texts)), pa.schema([]) if columns is None else columns, name)
    _write_rows(path, rows, 65_536, metadata(name, provenance))


def _write_rows(path: Path, rows: pa.Table, row_group: int, origin: Mapping[bytes, bytes]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.replace_schema_metadata(origin),
        sink,
        row_group_size=row_group,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        write_page_checksum=True,
        data_page_size=1 << 20,
    )
    write_bytes(path, memoryview(sink.getvalue()))


def _fit(table: pa.Table | Mapping[str, Any], columns: pa.Schema, name: str) -> pa.Table:
    """The rows under the schema, in one chunk, so that the file does not depend on how they were put together."""
    supplied = {key: table[key] for key in (table.column_names if isinstance(table, pa.Table) else table)}
    if missing := [field.name for field in columns if field.name not in supplied]:
        raise ValueError(f"table {name}: column {missing[0]} is missing")
    arrays = {
        field.name: _array(supplied[field.name], field.type, f"table {name}: column {field.name}") for field in columns
    }
    for field in columns:
        if arrays[field.name].null_count and not field.nullable:
            raise ValueError(f"table {name}: column {field.name} has {arrays[field.name].null_count} nulls")
    fields = list(columns)
    for key in supplied:
        if key not in arrays:
            arrays[key] = _array(supplied[key], None, f"table {name}: column {key}")
            fields.append(pa.field(key, arrays[key].type))
    return pa.Table.from_arrays([arrays[field.name] for field in fields], schema=pa.schema(fields))


def _array(column: Any, kind: pa.DataType | None, what: str) -> pa.Array:
    """One pyarrow array of type `kind` (None: as it comes); two axes of numpy become one list per row."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        if kind is not None and not column.type.equals(kind):
            raise ValueError(f"{what} is {column.type}, not {kind}")
        return column
    if isinstance(column, np.ndarray) and column.ndim == 2:
        rows, width = column.shape
        flat = pa.array(column.reshape(-1), type=None if kind is None else kind.value_type)
        return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), flat)
    return pa.array(column, type=kind)


def write_sentences(directory: Path, rows: Iterable[Mapping[str, Any] | pa.Table], *, provenance: Provenance) -> int:
    """Writes sentences, in order of id, into parts of 100,000, however they are cut; returns the number of parts."""
    kind, parts = TABLES["sentences"], 0
    waiting: pa.Table | None = None

    def write(table: pa.Table) -> None:
        write_table(directory / kind.path(parts), table, name=kind.name, provenance=provenance)

    for piece in rows:
        names = piece.column_names if isinstance(piece, pa.Table) else [*piece]
        fitting = _fit(piece, kind.columns_beside(names), kind.name)
        waiting = fitting if waiting is None else pa.concat_tables([waiting, fitting])
        while waiting.num_rows >= SENTENCES_PER_PART:
            write(waiting.slice(0, SENTENCES_PER_PART))
            waiting, parts = waiting.slice(SENTENCES_PER_PART), parts + 1
    if waiting is None or waiting.num_rows or not parts:
        write(kind.columns.empty_table() if waiting is None else waiting)
        parts += 1
    return parts
