"""What the threads that share a piece of a batch measure, put together in an order that does not depend on them."""

from itertools import chain, groupby
from threading import Lock

from torch import Tensor

from mnemoscope.mining.activity import Measured
from mnemoscope.mining.observer import Swept
from mnemoscope.mining.state import StateShape


class ExpertMeasures:
    """What all shares of a piece measured of one expert: put together when the last has come, so that little waits.

    A dense layer is one expert. `together`: sentences of all lengths, since an expert has few of each.
    """

    def __init__(self, shares: int, *, together: bool) -> None:
        self._together = together
        self.measured: list[Measured] = []
        self.histogram: Tensor | None = None
        self._swept: dict[int, list[Swept]] = {}
        self._shares, self._lock = shares, Lock()

    def take_measured(self, measured: Measured, histogram: Tensor | None) -> None:
        """Takes in what a card measured, which takes pieces whole."""
        self.measured, self.histogram = [measured], histogram

    def take(self, share: int, swept: list[Swept], histogram: Tensor | None) -> None:
        """Takes in the blocks of one share, in order of length."""
        with self._lock:
            self._swept[share] = swept
            if histogram is not None:
                self.histogram = histogram if self.histogram is None else self.histogram + histogram
            if len(self._swept) < self._shares:
                return
        # In order of length also across shares, so that the sums do not depend on how many there are.
        shares = chain.from_iterable(self._swept.pop(number) for number in range(self._shares))
        blocks = sorted(shares, key=lambda one: one.length)
        if self._together:
            self.measured = [Measured.of(blocks)] if blocks else []
        else:
            self.measured = [Measured.of(list(own)) for _, own in groupby(blocks, key=lambda one: one.length)]


class PieceMeasures:
    """What is measured of a piece that so many threads share: of each expert by (layer, number), and the routers'
    `weights` by layer and share.
    """

    def __init__(self, shape: StateShape, shares: int) -> None:
        self.experts = {
            (layer, expert): ExpertMeasures(shares, together=layer in shape.experts)
            for layer in shape.memories
            for expert in range(shape.width(layer))
        }
        self.weights: dict[int, dict[int, Tensor]] = {layer: {} for layer in shape.experts}

    def add_weights(self, layer: int, share: int, table: Tensor) -> None:
        """Notes the weights of some experts of a layer."""
        known = self.weights[layer].get(share)
        self.weights[layer][share] = table if known is None else known + table
