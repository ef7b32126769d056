"""Firings of every feature that are drawn evenly from a text: those at the positions with the smallest hashes.

A hash depends on the seed and the position alone, so the result does not depend on batches, order or merges. Of a long
text only positions with a low hash are looked at. Coefficients below zero are the firings of sign -1; as in `triggers`
their magnitudes are stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

DRAWN = 32
"""Firings of each memory and sign."""
POSITIONS = 1 << 20
"""Positions looked at, at least, if the text has so many."""
_SPAN = 1 << 24
"""More than the positions of any sentence: sentence and position make one number, the place."""
_LAST = (1 << 63) - 1
_EMPTY = -1
_KEPT = ("hash", "place", "magnitude", "weight")


@dataclass(frozen=True)
class Lottery:
    """Looks at the positions whose hash is in the lowest 1/`of`, a power of two."""

    seed: int
    of: int

    @classmethod
    def among(cls, positions: int, seed: int) -> "Lottery":
        return cls(seed, 1 << max(0, (positions // POSITIONS).bit_length() - 1))

    def hash(self, places: Tensor) -> Tensor:
        """A one-to-one 64-bit hash of places, less 2^63 so that signed numbers have the order of unsigned ones."""
        return _scramble(places ^ _scramble(torch.tensor(self.seed, device=places.device))) ^ -(1 << 63)

    def looks_at(self, hashes: Tensor) -> Tensor:
        return hashes <= (1 << 64) // self.of - (1 << 63) - 1


def _scramble(numbers: Tensor) -> Tensor:
    """The finaliser of splitmix64; products of int64 wrap."""
    numbers = numbers + (0x9E3779B97F4A7C15 - (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers


@dataclass(frozen=True)
class DrawnPositions:
    """Positions of a batch that are looked at, by rising hash: their numbers through the batch's columns, row by row,
    their hashes and places; all `[position]`.
    """

    tokens: Tensor
    hash: Tensor
    place: Tensor

    @classmethod
    def of(cls, lottery: Lottery, tokens: Tensor, sentences: Tensor, positions: Tensor) -> "DrawnPositions":
        place = sentences * _SPAN + positions
        hashes, order = lottery.hash(place).sort()
        order = order[lottery.looks_at(hashes)]
        return cls(tokens[order], hashes[: len(order)], place[order])

    def to(self, device: torch.device) -> "DrawnPositions":
        return DrawnPositions(self.tokens.to(device), self.hash.to(device), self.place.to(device))


@dataclass(frozen=True)
class Firings:
    """Firings of one batch that may be among the smallest, and how many each memory had."""

    memory: Tensor
    hash: Tensor
    place: Tensor
    magnitude: Tensor
    weight: Tensor | None
    counts: Tensor

    def __len__(self) -> int:
        return len(self.memory)


class RandomFirings:
    """The `DRAWN` firings `[memory, rank]` of one sign; `weighted`: with the router's weights."""

    def __init__(self, memories: int, *, weighted: bool = False, device: torch.device | str = "cpu") -> None:
        shape = memories, DRAWN
        self.memories = memories
        self.hash = torch.full(shape, _LAST, dtype=torch.int64, device=device)
        self.place = torch.full(shape, _EMPTY, dtype=torch.int64, device=device)
        self.magnitude = torch.zeros(shape, device=device)
        self.weight = torch.zeros(shape, device=device) if weighted else None
        self.firings = torch.zeros(memories, dtype=torch.int64, device=device)
        self._queue: list[Firings] = []
        self._queued = 0

    def draw(self, block: Tensor, drawn: DrawnPositions, *, sign: int) -> Firings:
        """The firings of a dense layer's coefficients `block [position, memory]`; changes nothing."""
        fires = block > 0 if sign > 0 else block < 0
        enters = fires & (drawn.hash[:, None] < self.hash[:, -1])
        if int(enters.count_nonzero()) > 4 * self.hash.numel():  # a dense start: the first of each are enough
            enters &= enters.cumsum(0, dtype=torch.int32) <= DRAWN
        row, memory = enters.nonzero(as_tuple=True)
        magnitude = sign * block[row, memory].float()
        return Firings(memory, drawn.hash[row], drawn.place[row], magnitude, None, fires.sum(0))

    def draw_routed(
        self, block: Tensor, drawn: DrawnPositions, experts: Tensor, weights: Tensor, *, sign: int, first: int
    ) -> Firings:
        """The firings of experts' `block [row, memory]`: the expert of every row, and the router's weight; the first
        expert begins at memory `first`.
        """
        width = block.shape[1]
        row, column = (block > 0 if sign > 0 else block < 0).nonzero(as_tuple=True)
        memory = first + experts[row] * width + column
        counts = torch.bincount(memory, minlength=self.memories)
        enters = drawn.hash[row] < self.hash[memory, -1]
        row, column, memory = row[enters], column[enters], memory[enters]
        magnitude, weight = sign * block[row, column].float(), None if self.weight is None else weights[row]
        return Firings(memory, drawn.hash[row], drawn.place[row], magnitude, weight, counts)

    def enqueue(self, found: Firings) -> None:
        self.firings += found.counts
        self._queue.append(found)
        self._queued += len(found)

    @property
    def is_due(self) -> bool:
        return 2 * self._queued >= self.hash.numel()

    def settle(self) -> None:
        if not self._queue:
            return
        parts, names = [self._firings(self._tensors()), *self._queue], _KEPT[: 3 if self.weight is None else 4]
        self._queue, self._queued = [], 0
        memory, hashes = (torch.cat([getattr(one, name) for one in parts]) for name in ("memory", "hash"))
        order = hashes.argsort()
        order = order[memory[order].argsort(stable=True)]
        memory = memory[order]
        begins = torch.searchsorted(memory, torch.arange(self.memories, device=memory.device))
        rank = torch.arange(len(memory), device=memory.device) - begins[memory]
        kept = rank < DRAWN
        at = memory[kept], rank[kept]
        for name in names:
            getattr(self, name)[at] = torch.cat([getattr(one, name) for one in parts])[order[kept]]

    @staticmethod
    def _firings(state: dict[str, Tensor]) -> Firings:
        at = (state["place"] != _EMPTY).nonzero(as_tuple=True)
        weight = state["weight"][at] if "weight" in state else None
        hashes, place, magnitude = (state[name][at] for name in ("hash", "place", "magnitude"))
        return Firings(at[0], hashes, place, magnitude, weight, state["firings"])

    def add_state(self, state: dict[str, Tensor]) -> None:
        """Adds another state of the same memories."""
        self.enqueue(self._firings({name: tensor.to(self.hash.device) for name, tensor in state.items()}))
        self.settle()

    def state(self) -> dict[str, Tensor]:
        self.settle()
        return self._tensors()

    def _tensors(self) -> dict[str, Tensor]:
        weight = {} if self.weight is None else {"weight": self.weight}
        return {"hash": self.hash, "place": self.place, "magnitude": self.magnitude, "firings": self.firings, **weight}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)

    def found(self) -> dict[str, Tensor]:
        """The state with `sentence` (-1: an empty place) and `position` in place of what they make up."""
        state = self.state()
        place = state.pop("place")
        return {**state, "sentence": place >> 24, "position": (place & _SPAN - 1).int()}
