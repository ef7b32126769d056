"""Trains small language models like the paper's from any text; resumable, on a CPU or a GPU."""

from mnemoscope.training.loop import train
from mnemoscope.training.recipe import Recipe
from mnemoscope.training.text import TextSource

__all__ = ["Recipe", "TextSource", "train"]
