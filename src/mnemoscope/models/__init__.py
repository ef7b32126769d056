"""Language models whose feed-forward layers can be read as memories."""

from mnemoscope.models.docstrings import WITH_DOCSTRINGS
from mnemoscope.models.expert_taps import Group
from mnemoscope.models.hooks import Block, overwrite_coefficients, read_blocks, read_coefficients, read_final
from mnemoscope.models.id_tokens import IdTokens
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.loading import device_of, load_for_ids, load_model
from mnemoscope.models.model_facts import Proof, Sizes
from mnemoscope.models.switches import kernels_chosen, set_threads
from mnemoscope.models.tokens import Beginning

__all__ = [
    "WITH_DOCSTRINGS",
    "Beginning",
    "Block",
    "Group",
    "IdTokens",
    "LanguageModel",
    "Proof",
    "Sizes",
    "device_of",
    "kernels_chosen",
    "load_for_ids",
    "load_model",
    "overwrite_coefficients",
    "read_blocks",
    "read_coefficients",
    "read_final",
    "set_threads",
]
