"""What people said of keys and compositions: the rows, their rules and tables, and which of them are final.

Knows no campaign and changes nothing. The names are loaded when they are first used (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.judgements.reading import read_judgements
    from mnemoscope.judgements.verdicts import read_verdicts

__all__ = ["read_judgements", "read_verdicts"]

_FILES = {"read_judgements": "reading", "read_verdicts": "verdicts"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'mnemoscope.judgements' has no attribute {name!r}")
    return getattr(import_module(f"mnemoscope.judgements.{_FILES[name]}"), name)
