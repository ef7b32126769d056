"""Compares atlases of one text: checkpoints, fine-tunes, seeds, sizes (definitions.md section 9, compare)."""

from mnemoscope.comparison.compare import compare
from mnemoscope.comparison.result import AtlasComparison, saved_comparisons

__all__ = ["AtlasComparison", "compare", "saved_comparisons"]
