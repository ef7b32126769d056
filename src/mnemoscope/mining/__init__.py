"""Long passes over a text: from a model and a corpus to an atlas, resumable, in parts, exact.

The names are loaded when they are first used (PEP 562), so that options can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.mining.merging import merge
    from mnemoscope.mining.plan import MiningPlan
    from mnemoscope.mining.run import mine, run_mining

__all__ = ["MiningPlan", "merge", "mine", "run_mining"]

_FILES = {"MiningPlan": "plan", "merge": "merging", "mine": "run", "run_mining": "run"}


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'mnemoscope.mining' has no attribute {name!r}")
    return getattr(import_module(f"mnemoscope.mining.{_FILES[name]}"), name)
