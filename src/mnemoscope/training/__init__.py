"""The built-in language model's recipe: made from the documentation on this machine, resumable, on a CPU or a GPU."""

from mnemoscope.training.loop import train
from mnemoscope.training.recipe import Recipe

__all__ = ["Recipe", "train"]
