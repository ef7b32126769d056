"""The prefixes with the highest coefficients of every memory of one layer, kept while a text streams by.

Two steps, so that a batch counts whole or not at all: `find` reads off a block, without changing anything, what could
still enter the best; `update` puts it into a short queue, which is merged by sorting when it is half as long as the
state. A card chooses and merges by kernels that the host does not wait for (kernels/choose.py).

Magnitudes are stored: the best of sign -1 are the lowest coefficients, negated.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.kernels.choose import Best, card_kernels
from mnemoscope.kernels.reference import Swept
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.blocks import CoefficientBlock
from mnemoscope.mining.text.measures import Collector, Measures, Rows

NEVER = -1
"""The sentence id of an empty place."""


class RankedPrefixes(Collector):
    """The first `keep` prefixes of every feature, `[feature, rank]`, in an order of their own; `weighted`: with the
    router's weights. A feature is a memory with a sign: all memories with the first of `signs`, then with the second.
    """

    def __init__(
        self,
        memories: int,
        keep: int,
        signs: Sequence[int],
        *,
        weighted: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.memories, self.keep, self.signs = memories, keep, tuple(signs)
        shape = len(self.signs) * memories, keep
        self.magnitude = torch.zeros(shape, device=device)
        self.sentence = torch.full(shape, NEVER, dtype=torch.int64, device=device)
        self.position = torch.full(shape, NEVER, dtype=torch.int32, device=device)
        self.names = ["magnitude", "sentence", "position"]
        if weighted:
            self.weight = torch.zeros(shape, device=device)
            self.names.append("weight")
        self._queue: list[Rows] = []
        self._queued = 0

    def order(self, rows: Rows) -> Tensor:
        """The order of rows by feature and rank."""
        raise NotImplementedError

    def threshold(self) -> Tensor:
        """What a prefix is compared with that may enter, from the last rank of each feature: `[feature]`."""
        raise NotImplementedError

    def by_sign(self) -> Iterator[tuple[int, int, Tensor]]:
        """Each sign with its first feature and the thresholds `[memory]` of its features."""
        for number, threshold in enumerate(torch.split(self.threshold(), self.memories)):
            yield self.signs[number], number * self.memories, threshold

    def enqueue(self, rows: Rows) -> None:
        """Queues rows; the caller settles when that `is_due`."""
        if len(rows[0]):
            self._queue.append(rows)
            self._queued += len(rows[0])

    @property
    def is_due(self) -> bool:
        return self._queued >= self.sentence.numel() // 2

    def settle(self) -> None:
        """Merges the queue."""
        if not self._queue:
            return
        rows = tuple(map(torch.cat, zip(self.rows(), *self._queue, strict=True)))
        self._queue, self._queued = [], 0
        order = self.order(rows)
        feature = rows[0][order]
        begins = torch.searchsorted(feature, torch.arange(len(self.sentence), device=feature.device))
        rank = torch.arange(len(order), device=feature.device) - begins[feature]
        kept = rank < self.keep
        order, at = order[kept], (feature[kept], rank[kept])
        for name, column in zip(self.names, rows[1:], strict=True):
            tensor = getattr(self, name)
            tensor.fill_(0 if tensor.is_floating_point() else NEVER)
            tensor[at] = column[order]

    def rows(self) -> Rows:
        """All that is settled."""
        at = (self.sentence != NEVER).nonzero(as_tuple=True)
        return at[0], *(getattr(self, name)[at] for name in self.names)

    def merge(self, other: Self) -> None:
        other.settle()
        self.enqueue(other.rows())
        self.settle()

    def state(self) -> dict[str, Tensor]:
        self.settle()
        return super().state()

    def sentences(self) -> Ints:
        """The ids of all sentences in it, ascending."""
        self.settle()
        return np.unique(self.sentence[self.sentence != NEVER].cpu().numpy())

    def columns(self) -> dict[str, NDArray[Any]]:
        """By memory, sign (+1 first) and rank."""
        self.settle()
        by_memory = {
            name: getattr(self, name).view(len(self.signs), self.memories, -1).transpose(0, 1).cpu().numpy()
            for name in self.names
        }
        memory, sign, rank = at = np.nonzero(by_memory["sentence"] != NEVER)
        signs = np.array(self.signs, np.int8)[sign]
        columns = {
            "memory": memory.astype(np.int32),
            "sign": signs,
            "rank": rank.astype(np.int16),
            "coefficient": signs * by_memory["magnitude"][at],
            "sentence": by_memory["sentence"][at],
            "position": by_memory["position"][at],
        }
        return columns | ({"router_weight": by_memory["weight"][at]} if "weight" in by_memory else {})


class Triggers(RankedPrefixes):
    """The best prefixes, by coefficient (falling), sentence id and position (definitions.md section 3), so that the
    result does not depend on batches, their order or merges.
    """

    def find(self, block: CoefficientBlock, swept: Swept, *, everywhere: bool) -> list[Rows]:
        """The prefixes of a block that may be among the best: of a sentence the first of its highest or, `everywhere`,
        all (the paper's literal text).
        """
        coefficients, peaks, lows = block.coefficients, swept.peaks, swept.lows
        if block.hidden is not None:  # zero never triggers
            coefficients = coefficients.masked_fill(block.hidden[..., None], 0)
            peaks, lows = coefficients.amax(1), coefficients.amin(1)
        found = []
        for sign, feature, threshold in self.by_sign():
            least = threshold[None]  # [row or 1, memory]
            if block.firsts is not None:
                least = threshold.unfold(0, coefficients.shape[2], 1)[block.firsts]
            if everywhere:
                reaches = coefficients >= least[:, None] if sign > 0 else coefficients <= -least[:, None]
                row, place, memory = reaches.nonzero(as_tuple=True)
            else:
                highest = peaks if sign > 0 else -lows
                row, memory = (highest >= least).nonzero(as_tuple=True)
                places = coefficients[row, :, memory]
                place = (places if sign > 0 else -places).argmax(1)
            magnitude = (sign * coefficients[row, place, memory]).float()
            position = block.positions[row, place].to(torch.int32)
            weight = () if block.weights is None else (block.weights[row, place],)
            numbers = memory + feature if block.firsts is None else block.firsts[row] + memory + feature
            found.append((numbers, magnitude, block.sentences[row], position, *weight))
        return found

    def update(self, measures: Measures) -> None:
        for candidates in measures.candidates:
            if not isinstance(candidates, Best):
                self.enqueue(candidates)
                continue
            self.settle()
            kernels = card_kernels(self.sentence.device)
            assert kernels is not None
            kept = self.magnitude, self.sentence, self.position
            self.magnitude, self.sentence, self.position = kernels.merge(kept, candidates)

    def order(self, rows: Rows) -> Tensor:
        feature, magnitude, sentence, position = rows[:4]
        # A positive float32 sorts as its bits do; feature above, falling magnitude below, in one integer.
        key = (feature << 32) - magnitude.view(torch.int32)
        order = (sentence * (1 << 24) + position).argsort(stable=True)
        return order[key[order].argsort(stable=True)]

    def threshold(self) -> Tensor:
        return self.magnitude[:, -1].clamp(min=2.0**-149)  # the smallest positive float32: zero never triggers
