"""Full-text search for memories by triggers, values, patterns or annotations, and lookup of memories by token.

An SQLite FTS5 index beside the atlas (`search/index.sqlite`) is built from its tables on first use. Needs no torch.
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
