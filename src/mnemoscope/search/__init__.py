"""Full-text search for memories by triggers, values, patterns or annotations, and lookup of memories by token.

The index (`search/index.sqlite` in the atlas, with SQLite's FTS5) is built on first use.
"""

from mnemoscope.search.index import Index, build_index, open_index
from mnemoscope.search.matches import Hit

__all__ = ["Hit", "Index", "build_index", "open_index"]
