"""Language models whose feed-forward layers can be read as memories."""

from mnemoscope.models.forward.hooks import Block, overwrite_coefficients, read_blocks, read_coefficients, read_final
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.memories.groups import Group
from mnemoscope.models.modules.switches import kernels_chosen, set_threads
from mnemoscope.models.opening.docstrings import WITH_DOCSTRINGS
from mnemoscope.models.opening.loading import device_of, load_for_ids, load_model
from mnemoscope.models.tokens.id_tokens import IdTokens

__all__ = [
    "WITH_DOCSTRINGS",
    "Block",
    "Group",
    "IdTokens",
    "LanguageModel",
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
