"""Search: which memories have a text in their triggers, values, patterns or annotations, and which know a token.

An SQLite FTS5 index lies beside the atlas (`search/index.sqlite`) and is made from its tables when it is first needed.
Needs no torch.
"""

from mnemoscope.search.fields import FIELDS, Hit, check_fields
from mnemoscope.search.index import Index, SearchResult
from mnemoscope.search.opening import build_index, open_index
from mnemoscope.search.tokens import Firing, Promotion, VocabularyToken

__all__ = [
    "FIELDS",
    "Firing",
    "Hit",
    "Index",
    "Promotion",
    "SearchResult",
    "VocabularyToken",
    "build_index",
    "check_fields",
    "open_index",
]
