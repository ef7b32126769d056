"""Where a result comes from: the entry `made_by` of every result object and document (contract.md); and a result as a
file, which holds the document and, under `saved`, what makes the object again. Nothing is pickled.

A file may come from a stranger. What a class declares is what is checked when the object is made again: the type of
every field, the columns of every frame (`text memory label? +trigger? int position`: names follow their kind, may be
null before a `?`, may be missing behind a `+`). Nothing is unpacked, so that no file takes many times its size.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.formatting import json_safe, show_controls

if TYPE_CHECKING:
    import polars as pl


def package_version() -> str:
    """The installed version of the package, or "unknown"."""
    try:
        return version("mnemoscope")
    except PackageNotFoundError:
        return "unknown"


def made_by(
    *, model: str | list[str] | None, atlas: str | list[str] | None, options: Mapping[str, Any], seed: int | None
) -> dict[str, Any]:
    """Fingerprint of the model, hash of the atlas's manifest (None without; lists of several), package version, options
    and seed.
    """
    return {"model": model, "atlas": atlas, "package": package_version(), "options": dict(options), "seed": seed}


class Result:
    """A result, which is a dataclass with `made_by`, that `save` writes and `mnemoscope.open_result` reads."""

    def __init_subclass__(cls) -> None:
        for name in vars(cls).keys() & {"__str__", "__repr__"}:
            setattr(cls, name, _visible(vars(cls)[name]))

    def to_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the document as JSON to `path`, for `open_result` too. Raises StoreFailed."""
        saved = {"kind": type(self).__name__, "fields": _plain(self)}
        write_json(Path(path), json_safe({**self.to_dict(), "saved": saved}))
        return Path(path)


def _visible(spell: Callable[[Any], str]) -> Callable[[Any], str]:
    """A result's text for a terminal: its names and texts may be a stranger's."""
    return wraps(spell)(lambda result: show_controls(spell(result)))


def _plain(value: Any) -> Any:
    import polars as pl  # here, since every command reads `package_version`

    if isinstance(value, pl.DataFrame):
        value.write_ipc_stream(buffer := BytesIO(), compat_level=pl.CompatLevel.oldest())
        return {"frame": b64encode(buffer.getvalue()).decode()}
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def restore(hint: Any, value: Any) -> Any:
    """What `save` wrote, as an object of this type; raises TypeError, LookupError, OSError or ValueError for anything
    else.
    """
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _frame(value, kinds[1])
    if origin is NotRequired:
        return restore(kinds[0], value)
    if origin in (Union, UnionType):
        for kind in (NoneType,) if value is None and NoneType in kinds else kinds:
            with suppress(TypeError):
                return restore(kind, value)
        raise TypeError(f"{value!r:.60} is none of {kinds}")
    if is_dataclass(hint) or is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        made: Any = hint(**{name: restore(hints[name], one) for name, one in _of(dict, value).items()})
        if is_typeddict(hint) and not hint.__required_keys__ <= made.keys():
            raise TypeError(f"{hint} has no {hint.__required_keys__ - made.keys()}")
        return made
    if origin is tuple:
        each = [kinds[0]] * len(_of(list, value)) if kinds[-1] is ... else kinds
        return tuple(restore(kind, one) for kind, one in zip(each, value, strict=True))
    if origin is Sequence:
        return [restore(kinds[0], one) for one in _of(list, value)]
    if origin in (dict, Mapping):
        return {name: restore(kinds[1], one) for name, one in _of(dict, value).items()}
    if origin is Literal:
        return kinds[kinds.index(value)]
    if hint is float:  # what is not finite was saved as null
        return float("nan") if value is None else float(_of((int, float), value))
    return value if hint is Any else _of(str if origin is os.PathLike else hint, value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r:.60} is not {kind}")
    return value


def _frame(value: Any, columns: str) -> "pl.DataFrame":
    """A frame with these columns, of an Arrow stream in base64 or of a list of rows."""
    import polars as pl
    import pyarrow as pa

    kinds: dict[str, Any] = {
        "text": pa.types.is_large_string,
        "int": pa.types.is_integer,
        "float": pa.types.is_floating,
        "bool": pa.types.is_boolean,
        "texts": pa.large_list(pa.large_string()).equals,
    }
    if isinstance(value, list):
        table = pl.DataFrame(value, infer_schema_length=None).to_arrow(compat_level=pl.CompatLevel.oldest())
    else:
        first, *messages = pa.ipc.MessageReader.open_stream(b64decode(_of(str, value["frame"]), validate=True))
        schema = pa.ipc.read_schema(first)
        if any(one.type != "record batch" or _is_packed(one.metadata.to_pybytes()) for one in messages):
            raise TypeError("the frame is compressed")
        table = pa.Table.from_batches([pa.ipc.read_record_batch(one, schema) for one in messages], schema)
    declared: dict[str, tuple[str, Any]] = {}
    test = kinds["text"]
    for word in columns.split():
        test = kinds.get(word, test)
        declared |= {} if word in kinds else {word.strip("+?"): (word, test)}
    for name, column in zip(table.column_names, table.columns, strict=True):
        word, test = declared.pop(name)
        if not (test(column.type) or pa.types.is_null(column.type)) or (column.null_count and word[-1] != "?"):
            raise TypeError(f"column {name} is {column.type}, with {column.null_count} nulls")
    if table.num_rows and (missing := [word for word, _ in declared.values() if word[0] != "+"]):
        raise TypeError(f"column {missing[0]} is missing")
    table.validate(full=True)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _is_packed(head: bytes) -> bool:
    """Whether the header of a record batch (a flatbuffer, Message.fbs of Arrow) says how its buffers are compressed."""

    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(head[at : at + size], "little", signed=size == 4)

    def field(table: int, place: int) -> int:
        offsets = table - number(table)
        return number(offsets + 4 + 2 * place, 2) if 4 + 2 * place < number(offsets, 2) else 0

    message = number(0)
    header = message + field(message, 2)
    return field(header + number(header), 3) != 0
