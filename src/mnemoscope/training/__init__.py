"""Language models of the paper's kind from any text, the built-in one above all; resumable, on a CPU or a GPU."""

from mnemoscope.training.loop import train
from mnemoscope.training.recipe import Recipe
from mnemoscope.training.text import Wanted

__all__ = ["Recipe", "Wanted", "train"]
