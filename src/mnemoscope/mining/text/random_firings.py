"""Firings of every feature that are drawn evenly from a text: those at the positions with the smallest hashes.

A hash depends on the seed and the position alone, so the result does not depend on batches, order or merges. Of a long
text only positions with a low hash are looked at. Coefficients below zero are the firings of sign -1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.mining.text.triggers import NEVER, STORED, Survivors, Triggers

DRAWN = 32
"""Firings of each memory and sign."""
POSITIONS = 1 << 20
"""Positions looked at, at least, if the text has so many."""
_LAST = (1 << 63) - 1


def hashes_of(sentences: Tensor, positions: Tensor, seed: int) -> Tensor:
    """A one-to-one 64-bit hash of positions, less 2^63 so that signed numbers have the order of unsigned ones."""
    return (
        _scramble(sentences * (1 << 24) + positions ^ _scramble(torch.tensor(seed, device=sentences.device))) ^ ~_LAST
    )


def _scramble(numbers: Tensor) -> Tensor:
    """The finaliser of splitmix64; products of int64 wrap."""
    numbers = numbers + (0x9E3779B97F4A7C15 - (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers


@dataclass(frozen=True)
class Lottery:
    """Looks at the positions whose hash is in the lowest 1/`of`, a power of two."""

    seed: int
    of: int

    @classmethod
    def among(cls, positions: int, seed: int) -> "Lottery":
        return cls(seed, 1 << max(0, (positions // POSITIONS).bit_length() - 1))

    def draw(self, tokens: Tensor, sentences: Tensor, positions: Tensor) -> "DrawnPositions":
        hashes, order = hashes_of(sentences, positions, self.seed).sort()
        order = order[hashes <= (1 << 64) // self.of - (1 << 63) - 1]
        return DrawnPositions(tokens[order], hashes[: len(order)], sentences[order], positions[order].int())


@dataclass(frozen=True)
class DrawnPositions:
    """Positions of a batch that are looked at, by rising hash: their numbers through the batch's columns, row by row,
    hashes, sentences and positions; all `[place]`.
    """

    tokens: Tensor
    hash: Tensor
    sentence: Tensor
    position: Tensor

    def at(self, places: Tensor) -> "DrawnPositions":
        return DrawnPositions(*(own[places] for own in vars(self).values()))

    def to(self, device: torch.device) -> "DrawnPositions":
        return DrawnPositions(*(own.to(device) for own in vars(self).values()))


@dataclass(frozen=True)
class RoutedRows:
    """The experts of some rows, counted from the one that begins at memory `first`, and the weights; both `[row]`."""

    first: int
    experts: Tensor
    weights: Tensor


class RandomFirings(Triggers):
    """The `DRAWN` firings `[memory, rank]` of one sign, by hash, and how many each memory had."""

    def __init__(self, memories: int, seed: int, *, weighted: bool = False, device: torch.device | str = "cpu") -> None:
        super().__init__(memories, DRAWN, weighted=weighted, device=device)
        self._seed = seed
        self.firings = torch.zeros(memories, dtype=torch.int64, device=device)
        self.raise_threshold()

    def draw(
        self, coefficients: Tensor, rows: Tensor, drawn: DrawnPositions, *, sign: int, routed: RoutedRows | None = None
    ) -> tuple[Survivors, Tensor]:
        """The firings among these rows of `coefficients [row, memory]`, which are of the places `drawn`, that may be
        among the first, and the number of all `[memory]`; changes nothing.
        """
        fires = (coefficients > 0 if sign > 0 else coefficients < 0)[rows]
        if routed is None:
            counts = fires.sum(0, dtype=torch.int32)
            fires &= drawn.hash[:, None] < self.threshold
            if int(fires.count_nonzero()) > 4 * self.sentence.numel():  # a dense start: the first of each are enough
                fires &= fires.cumsum(0, dtype=torch.int32) <= DRAWN
            row, column = fires.nonzero(as_tuple=True)
            memory = column
        else:
            row, column = fires.nonzero(as_tuple=True)
            memory = routed.first + routed.experts[row] * coefficients.shape[1] + column
            counts = torch.bincount(memory, minlength=self.memories)
            enters = drawn.hash[row] < self.threshold[memory]
            row, column, memory = row[enters], column[enters], memory[enters]
        magnitude = sign * coefficients[rows[row], column].float()
        weight = None if routed is None or self.weight is None else routed.weights[row]
        return Survivors(memory, magnitude, drawn.sentence[row], drawn.position[row], weight), counts

    def count(self, found: Survivors, counts: Tensor) -> None:
        """Queues what was drawn; the caller settles when that `is_due`."""
        self.firings += counts
        self.enqueue(found)

    def order_of(self, rows: Survivors) -> Tensor:
        order = hashes_of(rows.sentence, rows.position, self._seed).argsort()
        return order[rows.memory[order].argsort(stable=True)]

    def raise_threshold(self) -> None:
        last = hashes_of(self.sentence[:, -1], self.position[:, -1], self._seed)
        self.threshold = last.masked_fill(self.sentence[:, -1] == NEVER, _LAST)

    def add_state(self, state: dict[str, Tensor]) -> None:
        """Adds another state of the same memories."""
        self.firings += state["firings"]
        self.add(self._rows(tuple(state[name] for name in STORED if name in state)))

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "firings": self.firings}
