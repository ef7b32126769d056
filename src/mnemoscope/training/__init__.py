"""Language models of the paper's kind from any text, the built-in one above all; resumable, on a CPU or a GPU."""

from mnemoscope.training.loop import train
from mnemoscope.training.recipe import Recipe
from mnemoscope.training.text import TextSource

__all__ = ["Recipe", "TextSource", "train"]
