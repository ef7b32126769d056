"""Where a result comes from: the entry `made_by` of every result object and document (contract.md); and a result as a
file, which holds the document and, under `saved`, what makes the object again. Nothing is pickled.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.formatting import json_safe
from mnemoscope.foundation.options.parameters import explain


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


@explain
class Result:
    """A result, which is a dataclass with `made_by`, that `save` writes and `mnemoscope.open_result` reads."""

    def __init_subclass__(cls) -> None:
        explain(cls)

    def to_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the document as JSON, for `open_result` too. Raises StoreFailed."""
        saved = {"kind": type(self).__name__, "fields": _plain(self)}
        write_json(Path(path), json_safe({**self.to_dict(), "saved": saved}))
        return Path(path)


def _plain(value: Any) -> Any:
    import polars as pl  # here, since every command reads `package_version`

    if isinstance(value, pl.DataFrame):
        value.write_ipc(buffer := BytesIO())
        return {"frame": b64encode(buffer.getvalue()).decode()}
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def restore(hint: Any, value: Any) -> Any:
    """What `save` wrote, as an object of this type; raises TypeError, KeyError or ValueError for anything else."""
    if isinstance(value, dict) and value.keys() == {"frame"}:
        import polars as pl

        return pl.read_ipc(BytesIO(b64decode(value["frame"])))
    kinds = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        hint = next((kind for kind in kinds if is_dataclass(kind) or get_origin(kind) is tuple), None)
        return value if value is None else restore(hint, value)
    if get_origin(hint) is tuple:
        each = [kinds[0]] * len(value) if kinds[-1] is ... else kinds
        return tuple(map(restore, each, value))
    if isinstance(hint, type) and is_dataclass(hint):
        own = get_type_hints(hint)
        return hint(**{name: restore(own[name], one) for name, one in value.items()})
    if isinstance(value, dict):
        return {name: restore(None, one) for name, one in value.items()}
    return [restore(None, one) for one in value] if isinstance(value, list) else value
