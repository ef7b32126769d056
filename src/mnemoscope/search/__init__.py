"""Search: which memories have a text in their triggers, values, patterns or annotations, and which know a token.

An SQLite FTS5 index lies beside the atlas (`search/index.sqlite`) and is made from its tables when it is first needed.
Needs no torch. The names are loaded when they are first used (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.search.answers import FIELDS, Firing, Hit, Promotion, SearchResult, Token
    from mnemoscope.search.index import Index
    from mnemoscope.search.opening import build_index, open_index

__all__ = [
    "FIELDS",
    "Firing",
    "Hit",
    "Index",
    "Promotion",
    "SearchResult",
    "Token",
    "build_index",
    "open_index",
]

_FILES = dict.fromkeys(("FIELDS", "Firing", "Hit", "Promotion", "SearchResult", "Token"), "answers")
_FILES |= {"Index": "index", "build_index": "opening", "open_index": "opening"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'mnemoscope.search' has no attribute {name!r}")
    return getattr(import_module(f"mnemoscope.search.{_FILES[name]}"), name)
