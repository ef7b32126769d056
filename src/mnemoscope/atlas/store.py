"""Files of an atlas, written so that a crash leaves the old file or the new one, never half of one.

Every file is written under a temporary name in its own folder, flushed to the disk and renamed. The same rows give
the same bytes. What the operating system refuses becomes StoreFailed. Knows nothing of what the tables mean.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas.schema import SENTENCES_PER_PART, TABLES, Provenance, metadata
from mnemoscope.errors import StoreFailed

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = ".*.mnemoscope-tmp"


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turns what the operating system refuses inside the block into StoreFailed, naming `path` and the free space."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = "make room or choose another folder" if error.errno in _FULL else "choose another folder"
        raise StoreFailed(f"cannot write {path}: {reason}{_room_left(path)}; {advice}, then run it again") from error


def _room_left(path: Path) -> str:
    """The free space where `path` lies, as a clause of a sentence; empty if it cannot be told."""
    for folder in (path, *path.parents):
        try:
            return f" ({shutil.disk_usage(folder).free / 1e6:,.1f} MB free there)"
        except OSError:
            continue
    return ""


def flush(path: Path) -> None:
    """Makes what is in a file, or the renames inside a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Makes `folder` and its parents where they are missing, to survive a power cut; raises StoreFailed."""
    with storing(folder):
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for place in missing:
            with suppress(PermissionError):  # of a parent in which we may write and not read
                flush(place.parent)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends well, and leaves no trace when it does not.

    The folder is made where it is missing. Raises StoreFailed.
    """
    make_folder(path.parent)
    temporary = path.parent / f".{path.name}.{os.getpid()}.mnemoscope-tmp"
    with storing(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Writes `path` whole or not at all."""
    with replacing(path) as file:
        file.write(data)


def copy_file(source: Path, path: Path) -> None:
    """Copies a file to `path`, whole or not at all; raises StoreFailed."""
    with source.open("rb") as old, replacing(path) as new:
        shutil.copyfileobj(old, new, 1 << 20)


def write_json(path: Path, value: object) -> None:
    """Writes `value` with sorted keys, one space of indent and finite numbers only (ValueError otherwise)."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """The one spelling of a JSON document that the store uses."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def write_table(path: Path, table: pa.Table | Mapping[str, Any], *, name: str, provenance: Provenance) -> None:
    """Writes the rows of table `name` to `path`; the same rows always give the same bytes.

    `table` is a pyarrow table or columns (lists, numpy or pyarrow arrays; numpy's masked entries are nulls, and an
    array of two axes is a list per row), in the order of the schema or not.
    Columns beyond the schema are kept, after the known ones. A missing column, a wrong type or a null where none is
    allowed is a bug of the caller: ValueError.
    """
    kind = TABLES[name]
    _write_rows(path, _fitted(table, kind.columns, name), kind.row_group, metadata(name, provenance))


def write_free_table(
    path: Path, table: pa.Table, *, name: str, provenance: Provenance, columns: pa.Schema | None = None
) -> None:
    """Writes a table that is none of the format's, such as an answer; the same rows always give the same bytes.

    `columns`, if given, come first and must have these types; text is stored as string whatever kind of string it is.
    """
    texts = [
        pa.field(field.name, pa.string() if pa.types.is_large_string(field.type) else field.type)
        for field in table.schema
    ]
    rows = _fitted(table.cast(pa.schema(texts)), pa.schema([]) if columns is None else columns, name)
    _write_rows(path, rows, 65_536, metadata(name, provenance))


def _write_rows(path: Path, rows: pa.Table, row_group: int, said: Mapping[bytes, bytes]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.replace_schema_metadata(said),
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


def _fitted(table: pa.Table | Mapping[str, Any], columns: pa.Schema, name: str) -> pa.Table:
    """The rows under the schema, in one chunk, so that how they were put together leaves no trace in the file."""
    given = {key: table[key] for key in (table.column_names if isinstance(table, pa.Table) else table)}
    if missing := [field.name for field in columns if field.name not in given]:
        raise ValueError(f"table {name}: column {missing[0]} is missing")
    arrays = {
        field.name: _array(given[field.name], field.type, f"table {name}: column {field.name}") for field in columns
    }
    for field in columns:
        if arrays[field.name].null_count and not field.nullable:
            raise ValueError(f"table {name}: column {field.name} has {arrays[field.name].null_count} nulls")
    fields = list(columns)
    for key in given:
        if key not in arrays:
            arrays[key] = _array(given[key], None, f"table {name}: column {key}")
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
    """Writes sentences, in whatever pieces they come, into parts of 100,000; returns how many parts.

    `rows` must come in order of sentence id. The pieces leave no trace: the parts depend on the rows alone.
    """
    kind = TABLES["sentences"]
    waiting: list[pa.Table] = []
    held = parts = 0

    def flush(table: pa.Table) -> None:
        nonlocal parts
        write_table(directory / kind.path(parts), table, name=kind.name, provenance=provenance)
        parts += 1

    for piece in rows:
        table = _fitted(piece, kind.columns, kind.name)
        waiting.append(table)
        held += table.num_rows
        while held >= SENTENCES_PER_PART:
            whole = pa.concat_tables(waiting)
            flush(whole.slice(0, SENTENCES_PER_PART))
            waiting = [whole.slice(SENTENCES_PER_PART)]
            held -= SENTENCES_PER_PART
    if held or not parts:
        flush(pa.concat_tables(waiting) if waiting else kind.columns.empty_table())
    return parts


def file_hash(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_strays(directory: Path) -> int:
    """Removes temporary files that a killed process left behind and returns how many; hold the lock when calling."""
    strays = [path for path in directory.rglob(_TEMPORARY) if path.is_symlink() or not path.is_dir()]
    for stray in strays:
        with storing(stray):
            stray.unlink(missing_ok=True)
    return len(strays)
