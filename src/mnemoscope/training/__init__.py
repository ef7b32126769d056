"""Trains language models of the paper's kind from any text, such as the built-in one; resumable, on a CPU or a GPU."""

from mnemoscope.training.loop import train
from mnemoscope.training.recipe import Recipe
from mnemoscope.training.text import TextSource

__all__ = ["Recipe", "TextSource", "train"]
