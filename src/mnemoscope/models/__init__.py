"""Language models whose feed-forward layers can be read as memories."""

from mnemoscope.models.huggingface import load_model
from mnemoscope.models.language_model import Beginning, LanguageModel, Proof, Sizes

__all__ = ["Beginning", "LanguageModel", "Proof", "Sizes", "load_model"]
