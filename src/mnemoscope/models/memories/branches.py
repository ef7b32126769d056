"""Branches of a layer that have norms of their own: what reads the stream before them, and what stands behind them.

Gemma 4 adds a dense layer and its experts, each behind a norm of its own, before the block's norm. Such a norm is an
output norm (definitions.md sections 1 and 7.1): its centring and gain are folded into the values of its branch, and
what it divides by depends on the text. A layer without branches answers as if it were one.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Branch:
    """The norm that the keys of a branch read the stream through, and the norm behind its values."""

    before: nn.Module
    behind: nn.Module
