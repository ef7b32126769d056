"""Where a result comes from: the entry `made_by` of every result object and document (contract.md); and a result as a
file, which holds the document and, under `saved`, what makes the object again. Nothing is pickled.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.formatting import json_safe, show_controls
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
        for name in vars(cls).keys() & {"__str__", "__repr__"}:
            setattr(cls, name, _visible(vars(cls)[name]))

    def to_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the document as JSON, for `open_result` too. Raises StoreFailed."""
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
