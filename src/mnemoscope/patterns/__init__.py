"""What the triggers of a memory have in common, found from the tables alone; and what people say about it.

`write_patterns` makes patterns.parquet; annotations.py reads people's judgements; stop_words.py is the project's list.
The names are loaded when they are first used (PEP 562), so that the list of words can be read alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.patterns.annotations import read_annotations
    from mnemoscope.patterns.writing import write_patterns

__all__ = ["read_annotations", "write_patterns"]

_FILES = {"read_annotations": "annotations", "write_patterns": "writing"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'mnemoscope.patterns' has no attribute {name!r}")
    return getattr(import_module(f"mnemoscope.patterns.{_FILES[name]}"), name)
