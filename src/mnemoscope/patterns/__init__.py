"""What the triggers of a memory have in common, found from the tables alone; `write_patterns` stores it."""

from mnemoscope.patterns.finding import write_patterns

__all__ = ["write_patterns"]
