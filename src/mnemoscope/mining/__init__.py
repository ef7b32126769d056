"""Mines an atlas from a model and a text: resumable, in parts, exact. Public names are loaded when first used (PEP
562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.mining.extending import extend
    from mnemoscope.mining.merging import merge
    from mnemoscope.mining.run import mine, run_mining

__all__ = ["extend", "merge", "mine", "run_mining"]

_FILES = {
    "extend": "extending",
    "merge": "merging",
    "mine": "run",
    "run_mining": "run",
}


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"mnemoscope.mining.{_FILES[name]}"), name)
    raise AttributeError(f"module 'mnemoscope.mining' has no attribute {name!r}")
