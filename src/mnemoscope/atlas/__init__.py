"""The atlas: a self-describing folder of tables (FORMAT.md), written and read without torch.

Reading starts at `open_atlas`; writing goes through schema.py, store.py, manifest.py and lock.py. Public names are
loaded when first used (PEP 562), so that a command which only looks into a folder loads no tables.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.atlas.files import verify
    from mnemoscope.atlas.read import Atlas, Memory, open_atlas

__all__ = ["Atlas", "Memory", "open_atlas", "verify"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"mnemoscope.atlas.{'files' if name == 'verify' else 'read'}"), name)
    raise AttributeError(f"module 'mnemoscope.atlas' has no attribute {name!r}")
