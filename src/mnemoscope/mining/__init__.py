"""Long passes over a text: from a model and a corpus to an atlas, resumable, in parts, exact.

The public names are loaded when they are first used (PEP 562): a pass over tensors alone needs nothing of the store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.mining.extending import extend
    from mnemoscope.mining.merging import merge
    from mnemoscope.mining.plan.mining_plan import MiningPlan
    from mnemoscope.mining.run import mine, run_mining

__all__ = ["MiningPlan", "extend", "merge", "mine", "run_mining"]

_FILES = {
    "extend": "extending", "merge": "merging", "MiningPlan": "plan.mining_plan", "mine": "run", "run_mining": "run",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"mnemoscope.mining.{_FILES[name]}"), name)
    raise AttributeError(f"module 'mnemoscope.mining' has no attribute {name!r}")
