"""Opens again what the `save` of a result wrote."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from mnemoscope.errors import OptionError
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
    """
    saved = read_object(Path(path)).get("saved")
    try:
        assert isinstance(saved, dict)
        kind = saved["kind"]
        return restore(getattr(import_module(f"mnemoscope.{_ROOMS[kind]}"), kind), saved["fields"])
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        raise OptionError(
            f"{os.fspath(path)} is not a file that the save() of a result of this version wrote; make the result again"
        ) from None
