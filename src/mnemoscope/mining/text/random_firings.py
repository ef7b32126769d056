"""Firings of every feature that are drawn evenly from a text: those at the positions with the smallest hashes.

A hash depends on the seed and the position alone, so the result does not depend on batches, order or merges. Of a long
text only positions with a low hash are looked at. Coefficients below zero are the firings of sign -1.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.mining.text.blocks import Places
from mnemoscope.mining.text.measures import Measures, Rows
from mnemoscope.mining.text.triggers import NEVER, RankedPrefixes
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


class RandomFirings(RankedPrefixes):
    """The `DRAWN` firings of every feature, by hash, and how many it had in all, `firings [feature]`."""

    def __init__(
        self,
        memories: int,
        signs: Sequence[int],
        seed: int,
        *,
        weighted: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(memories, DRAWN, signs, weighted=weighted, device=device)
        self._seed = seed
        self.firings = torch.zeros(len(self.sentence), dtype=torch.int64, device=device)

    def find(self, group: Group, places: Places, *, one_in: int) -> tuple[list[Rows], Tensor]:
        """The firings of a group that may be among the first, of those at one in so many positions, and the number of
        all of these, `[feature]`.
        """
        at, row, column, first, weight = places.locate(group)
        sentence, position = places.sentences[row], places.positions[column]
        hashes = hashes_of(sentence, position, self._seed)
        looked_at = hashes <= (1 << 64) // one_in - (1 << 63) - 1
        if places.hidden is not None:
            looked_at &= ~places.hidden[row, column]
        drawn = looked_at.nonzero()[:, 0]
        drawn = drawn[hashes[drawn].argsort()]
        at, hashes, first, weight = at[drawn], hashes[drawn], first[drawn], weight[drawn]
        sentence, position, width = sentence[drawn], position[drawn].to(torch.int32), group.coefficients.shape[-1]
        found, firings = list[Rows](), torch.zeros_like(self.firings)
        for sign, feature, threshold in self.by_sign():
            fires = (group.coefficients > 0 if sign > 0 else group.coefficients < 0)[at]
            if group.count == 1:
                features = slice(feature + group.first, feature + group.first + width)
                firings[features] = fires.sum(0, dtype=torch.int32)
                fires &= hashes[:, None] < threshold[group.first : group.first + width]
                if int(fires.count_nonzero()) > 4 * DRAWN * width:  # a dense start: the first of each are enough
                    fires &= fires.cumsum(0, dtype=torch.int32) <= DRAWN
            row, column = fires.nonzero(as_tuple=True)
            memory = first[row] + column
            if group.count > 1:
                firings[feature : feature + self.memories] = torch.bincount(memory, minlength=self.memories)
                enters = hashes[row] < threshold[memory]
                row, column, memory = row[enters], column[enters], memory[enters]
            magnitude = (sign * group.coefficients[at[row], column]).float()
            columns = (memory + feature, magnitude, sentence[row], position[row], weight[row])
            found.append(columns[: 1 + len(self.names)])
        return found, firings

    def update(self, measures: Measures) -> None:
        for drawn, firings in measures.firings:
            self.firings += firings
            for rows in drawn:
                self.enqueue(rows)

    def merge(self, other: Self) -> None:
        self.firings += other.firings
        super().merge(other)

    def order(self, rows: Rows) -> Tensor:
        order = hashes_of(rows[2], rows[3], self._seed).argsort()
        return order[rows[0][order].argsort(stable=True)]

    def threshold(self) -> Tensor:
        sentence, position = self.sentence[:, -1], self.position[:, -1]
        return hashes_of(sentence, position, self._seed).masked_fill(sentence == NEVER, _LAST)

    def columns(self) -> dict[str, NDArray[Any]]:
        columns = super().columns()
        features = columns["memory"] + self.memories * (columns["sign"] != self.signs[0])
        return {**columns, "kept_firings": self.firings.cpu().numpy()[features]}
