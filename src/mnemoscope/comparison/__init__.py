"""Compares atlases of one text: checkpoints, fine-tunes, seeds, sizes (definitions.md section 9, compare)."""

from mnemoscope.comparison.compare import compare
from mnemoscope.comparison.result import Comparison, saved_comparisons

__all__ = ["Comparison", "compare", "saved_comparisons"]
