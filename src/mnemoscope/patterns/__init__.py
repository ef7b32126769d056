"""What the triggers of a memory have in common, found from the tables alone; `write_patterns` stores it.

Several processes can share the layers: `write_words` first, `join_patterns` last.
"""

from mnemoscope.patterns.finding import PatternFinder
from mnemoscope.patterns.layer_files import (
    join_patterns,
    open_finder,
    write_layer_patterns,
    write_patterns,
    write_words,
)

__all__ = ["PatternFinder", "join_patterns", "open_finder", "write_layer_patterns", "write_patterns", "write_words"]
