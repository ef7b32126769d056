"""A cache of probed values, up to a bound.

Plain values are a view and cost nothing. Probed ones cost as much as the down-projection in a forward over as many
tokens as it has memories, and a trace needs those of every layer, some twice. The first that fit stay: callers go
through the layers in turn, so the least recently used ones are needed next.
"""

from threading import Lock
from typing import final

from torch import Tensor

from mnemoscope.models.memories.feed_forward import FeedForward

MOST_BYTES = 1 << 30
"""Per model, on its device: the values of GPT-2 large in float32, or of a model twice as large in half."""


@final
class ProbedValues:
    """The values of one model's layers, `some` of which are probed; thread-safe."""

    def __init__(self, *, some: bool) -> None:
        self._some = some
        self._kept: dict[int, Tensor] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, layer: int, ffn: FeedForward) -> Tensor:
        """The values [memory, hidden] of a layer; computed anew if they are plain or did not fit."""
        if (kept := self._kept.get(layer)) is not None:
            return kept
        values = ffn.values()
        size = values.untyped_storage().nbytes() if self._some and ffn.is_probed else 0
        with self._lock:
            if size and layer not in self._kept and self._bytes + size <= MOST_BYTES:
                self._kept[layer] = values
                self._bytes += size
        return values
