"""Opens again what the `save` of a result wrote, and refuses everything else: such files are sent to others."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from jinja2 import TemplateError

from mnemoscope.atlas.form import unwritable
from mnemoscope.errors import MnemoscopeError, OptionError
from mnemoscope.foundation.files import read_object
from mnemoscope.foundation.origin import restore

_ROOMS = {
    **dict.fromkeys(("Trace", "Comparison"), "tracing"),
    **dict.fromkeys(("Attribution", "PromptsAttribution", "RunDifference", "PromptsDifference"), "attribution"),
    "AtlasComparison": "comparison",
    "Audit": "auditing",
}


def open_result(path: str | os.PathLike[str]) -> Any:
    """The result that its `save` wrote to a file: of `trace`, `attribute`, `diff`, `compare` or an audit.

    Raises OptionError for another file, and for a result of another version of this package.

    Args:
        path: The file.
    """
    saved = read_object(Path(path)).get("saved")
    try:
        if not isinstance(saved, dict) or unwritable(saved):
            raise TypeError
        kind = saved["kind"]
        result = restore(getattr(import_module(f"mnemoscope.{_ROOMS[kind]}"), kind), saved["fields"])
        for shown in ("__str__", "__repr__", "_repr_html_", "to_dict"):
            # Lists that belong together may still differ in length: what cannot be shown is refused here, not later.
            getattr(result, shown, result.__repr__)()
        return result
    except (
        *(ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError),
        *(MnemoscopeError, TemplateError, pa.ArrowException, pl.exceptions.PolarsError),
    ):
        raise OptionError(
            f"{os.fspath(path)} is not a file that the save() of a result of this version wrote; make the result again"
        ) from None
