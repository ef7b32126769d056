"""The half of the page that needs the model: loading it, and taking turns with it. Imports torch; imported lazily."""

from mnemoscope.web.model_side.loading import load
from mnemoscope.web.model_side.turns import ModelSide

__all__ = ["ModelSide", "load"]
