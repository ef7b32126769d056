"""Firings of every feature that are drawn evenly from a text: those at the positions with the smallest hashes.

A hash depends on the seed and the position alone, so the result does not depend on batches, order or merges. Of a long
text only positions with a low hash are looked at. Coefficients below zero are the firings of sign -1.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mnemoscope.kernels.choose import Best
from mnemoscope.mining.text.triggers import NEVER, STORED, Survivors, Triggers
from mnemoscope.models import Group

DRAWN = 32
"""Firings of each memory and sign."""
POSITIONS = 1 << 20
"""Positions looked at, at least, if the text has so many."""
_LAST = (1 << 63) - 1


def hashes_of(sentences: Tensor, positions: Tensor, seed: int) -> Tensor:
    """A one-to-one 64-bit hash of positions, less 2^63 so that signed numbers have the order of unsigned ones."""
    return scramble(sentences * (1 << 24) + positions ^ scramble(torch.tensor(seed, device=sentences.device))) ^ ~_LAST


def scramble(numbers: Tensor) -> Tensor:
    """A fixed one-to-one mixing of int64 numbers, whose products wrap (the finaliser of splitmix64)."""
    numbers = numbers + (0x9E3779B97F4A7C15 - (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1)):
        numbers = (numbers ^ (numbers >> shift & (1 << 64 - shift) - 1)) * factor
    return numbers


def choose_share(positions: int) -> int:
    """N, a power of two: of a text of so many positions those with a hash in the lowest 1/N are looked at."""
    return 1 << max(0, (positions // POSITIONS).bit_length() - 1)


@dataclass(frozen=True)
class DrawnPositions:
    """Positions of a batch that are looked at, by rising hash; all `[place]`. Their coefficients are in these rows: of
    a dense layer through the batch's columns, row by row; of experts in one group, with the first memory of each
    expert and the router's weight.
    """

    row: Tensor
    hash: Tensor
    sentence: Tensor
    position: Tensor
    first: Tensor | None = None
    weight: Tensor | None = None

    @classmethod
    def among(cls, rows: Tensor, sentences: Tensor, positions: Tensor, *, seed: int, one_in: int) -> Self:
        hashes, order = hashes_of(sentences, positions, seed).sort()
        order = order[hashes <= (1 << 64) // one_in - (1 << 63) - 1]
        return cls(rows[order], hashes[: len(order)], sentences[order], positions[order].int())

    def to(self, device: torch.device) -> "DrawnPositions":
        return DrawnPositions(*(tensor.to(device) for tensor in (self.row, self.hash, self.sentence, self.position)))

    def in_experts(self, group: Group) -> "DrawnPositions":
        """Those that were routed to experts of this group."""
        place_of = torch.full((group.of,), -1, device=self.row.device)
        place_of[self.row] = torch.arange(len(self.row), device=self.row.device)
        places = place_of if group.tokens is None else place_of[group.tokens]
        row = (places >= 0).nonzero()[:, 0]
        experts = torch.zeros_like(row) if group.experts is None else group.experts[row]
        weight = torch.ones(len(row), device=row.device) if group.weights is None else group.weights[row]
        first, at = group.first + experts * group.coefficients.shape[-1], places[row]
        return DrawnPositions(row, self.hash[at], self.sentence[at], self.position[at], first, weight.float())


class RandomFirings(Triggers):
    """The `DRAWN` firings `[memory, rank]` of one sign, by hash, and how many each memory had."""

    def __init__(self, memories: int, seed: int, *, weighted: bool = False, device: torch.device | str = "cpu") -> None:
        super().__init__(memories, DRAWN, weighted=weighted, device=device)
        self._seed = seed
        self.firings = torch.zeros(memories, dtype=torch.int64, device=device)
        self.raise_threshold()

    def draw(self, coefficients: Tensor, drawn: DrawnPositions, *, sign: int) -> Survivors:
        """The firings among the drawn rows of `coefficients [row, memory]` that may be among the first, and the number
        of all `[memory]`; changes nothing.
        """
        fires = (coefficients > 0 if sign > 0 else coefficients < 0)[drawn.row]
        if drawn.first is None:
            counts = fires.sum(0, dtype=torch.int32)
            fires &= drawn.hash[:, None] < self.threshold
            if int(fires.count_nonzero()) > 4 * self.sentence.numel():  # a dense start: the first of each are enough
                fires &= fires.cumsum(0, dtype=torch.int32) <= DRAWN
            row, column = fires.nonzero(as_tuple=True)
            memory = column
        else:
            row, column = fires.nonzero(as_tuple=True)
            memory = drawn.first[row] + column
            counts = torch.bincount(memory, minlength=self.memories)
            enters = drawn.hash[row] < self.threshold[memory]
            row, column, memory = row[enters], column[enters], memory[enters]
        magnitude = sign * coefficients[drawn.row[row], column].float()
        weight = None if drawn.weight is None else drawn.weight[row]
        return Survivors(memory, magnitude, drawn.sentence[row], drawn.position[row], weight, counts)

    def enqueue(self, candidates: Survivors | Best) -> None:
        if isinstance(candidates, Survivors) and candidates.firings is not None:
            self.firings += candidates.firings
        super().enqueue(candidates)

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
