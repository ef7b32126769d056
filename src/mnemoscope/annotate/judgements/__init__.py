"""Judgements of keys and compositions: their rows, rules and tables, and which of them are final."""

from mnemoscope.annotate.judgements.reading import read_judgements, read_verdicts

__all__ = ["read_judgements", "read_verdicts"]
