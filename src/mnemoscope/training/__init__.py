"""Trains small language models like the paper's from any text; resumable, on a CPU or a GPU. Public names are
loaded when first used (PEP 562), so that a wrong recipe or text is refused without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.training.loop import train
    from mnemoscope.training.recipe import Recipe
    from mnemoscope.training.text import TextSource

__all__ = ["Recipe", "TextSource", "train"]

_FILES = {"Recipe": "recipe", "TextSource": "text", "train": "loop"}


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(import_module(f"mnemoscope.training.{_FILES[name]}"), name)
    raise AttributeError(f"module 'mnemoscope.training' has no attribute {name!r}")
