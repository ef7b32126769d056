"""Values that were probed, kept while their model is in use, up to a bound.

Plain values are a view and cost nothing. Probed ones are a product as large as the down-projection's part of a forward
over as many tokens as it has memories, and a trace asks for those of every layer, some twice. The first that fit stay:
whoever asks goes through the layers in turn, so what was used longest ago is what is wanted next.
"""

from threading import Lock
from typing import final

from torch import Tensor

from mnemoscope.models.memories.feed_forward import FeedForward

MOST_BYTES = 1 << 30
"""Of one model, on its device: the values of GPT-2 large in float32, or of a model twice as large in half."""


@final
class ProbedValues:
    """The values of one model's layers, `some` of which are probed; several threads may ask."""

    def __init__(self, *, some: bool) -> None:
        self._some = some
        self._kept: dict[int, Tensor] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, layer: int, ffn: FeedForward) -> Tensor:
        """The values [memory, hidden] of a layer; asked anew where they are plain, or there was no room."""
        if (kept := self._kept.get(layer)) is not None:
            return kept
        values = ffn.values()
        size = values.untyped_storage().nbytes() if self._some and ffn.is_probed else 0
        with self._lock:
            if size and layer not in self._kept and self._bytes + size <= MOST_BYTES:
                self._kept[layer] = values
                self._bytes += size
        return values
