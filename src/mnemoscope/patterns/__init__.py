"""What the triggers of a memory have in common, found from the tables alone.

`write_patterns` makes patterns.parquet; stop_words.py is the project's list. The name is loaded when it is first used
(PEP 562), so that the list of words can be read alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.patterns.writing import write_patterns

__all__ = ["write_patterns"]


def __getattr__(name: str) -> Any:
    if name != "write_patterns":
        raise AttributeError(f"module 'mnemoscope.patterns' has no attribute {name!r}")
    from mnemoscope.patterns.writing import write_patterns

    return write_patterns
