"""What `save` wrote, checked while it becomes objects again: a file may come from a stranger.

A dataclass or TypedDict is the only declaration: each value has the type of its field, each frame the columns of its
annotation. Nothing is unpacked, so that no file takes more memory than a few times its size. Raises TypeError,
LookupError or ValueError (also pyarrow's) for anything else.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import polars as pl
import pyarrow as pa

_KINDS = {
    "text": pa.types.is_large_string, "int": pa.types.is_integer, "float": pa.types.is_floating,
    "bool": pa.types.is_boolean, "texts": lambda kind: kind == pa.large_list(pa.large_string()),
}  # fmt: skip
"""Words of a frame's annotation, such as `text memory label? +trigger? int position`: names follow their kind, `?`
allows nulls, and `+` stands before a column that may be missing."""


def restore(hint: Any, value: Any) -> Any:
    """What `save` wrote, as an object of this type."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _frame(value, kinds[1])
    if origin is NotRequired:
        return restore(kinds[0], value)
    if origin in (Union, UnionType):
        return value if value is None and NoneType in kinds else _first_fitting(kinds, value)
    if is_dataclass(hint) or is_typeddict(hint):
        own = get_type_hints(hint, include_extras=True)
        made: Any = hint(**{name: restore(own[name], one) for name, one in _of(dict, value).items()})
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
    return value if hint is Any else _of(str if origin is PathLike else hint, value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r:.60} is not {kind}")
    return value


def _first_fitting(kinds: Sequence[Any], value: Any) -> Any:
    for kind in kinds:
        try:
            return restore(kind, value)
        except TypeError:
            continue
    raise TypeError(f"{value!r:.60} is none of {kinds}")


def _frame(value: Any, columns: str) -> pl.DataFrame:
    """A frame with these columns, of an Arrow stream in base64 or of a list of rows."""
    if isinstance(value, list):
        table = pl.DataFrame(value, infer_schema_length=None).to_arrow(compat_level=pl.CompatLevel.oldest())
    else:
        first, *messages = pa.ipc.MessageReader.open_stream(b64decode(_of(str, value["frame"]), validate=True))
        schema = pa.ipc.read_schema(first)
        if any(one.type != "record batch" or _is_packed(one.metadata.to_pybytes()) for one in messages):
            raise TypeError("the frame is compressed")
        table = pa.Table.from_batches([pa.ipc.read_record_batch(one, schema) for one in messages], schema)
    known, test = {}, _KINDS["text"]
    for word in columns.split():
        if word in _KINDS:
            test = _KINDS[word]
        else:
            known[word.strip("+?")] = word, test
    for name, column in zip(table.column_names, table.columns, strict=True):
        word, test = known.pop(name)
        if not (test(column.type) or pa.types.is_null(column.type)) or (column.null_count and word[-1] != "?"):
            raise TypeError(f"column {name} is {column.type}, with {column.null_count} nulls")
    if table.num_rows and (missing := [word for word, _ in known.values() if word[0] != "+"]):
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
