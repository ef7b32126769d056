"""Branches of a layer with norms of their own, before their keys and behind their values.

Gemma 4 adds a dense layer and its experts, each with its own norm, before the block's norm. Such a norm is an output
norm (definitions.md sections 1 and 7.1): its centring and gain are folded into the values of its branch, and its
divisor depends on the text.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Branch:
    """The norm through which a branch's keys read the stream, and the norm behind its values."""

    before: nn.Module
    behind: nn.Module
