"""Memories as numbers counted over all layers, and back. Reads nothing."""

from bisect import bisect_right
from collections.abc import Sequence

from mnemoscope.memory import MemoryId

Ranges = tuple[tuple[int, int], ...]
"""Numbers from and to, both included."""
EVERYWHERE: Ranges = ((0, (1 << 32) - 1),)


class Places:
    """Which numbers belong to which layer."""

    def __init__(self, layers: Sequence[tuple[int, int, int]], *, spaced: bool) -> None:
        """`layers`: layer, its first number, its count; `spaced`: whether tokens bring their spaces along."""
        self._layers = {layer: (first, count) for layer, first, count in layers}
        self._firsts = sorted((first, layer) for layer, first, _ in layers)
        self.spaced = spaced

    def id(self, number: int) -> MemoryId:
        """The memory of that number."""
        first, layer = self._firsts[bisect_right(self._firsts, (number, 1 << 62)) - 1]
        return MemoryId(layer, number - first)

    def number(self, memory: MemoryId) -> int | None:
        """The number of the memory, or None where the atlas has no such memory."""
        first, count = self._layers.get(memory.layer, (0, 0))
        return first + memory.memory if memory.memory < count else None

    def ranges(self, layers: Sequence[int] | None) -> Ranges:
        """The numbers of these layers, neighbours joined; of all where None; KeyError for a layer that is not there."""
        if layers is None:
            return EVERYWHERE
        chosen = sorted(set(layers))
        joined: list[tuple[int, int]] = []
        for layer in chosen:
            first, count = self._layers[layer]
            if joined and joined[-1][1] + 1 == first:
                joined[-1] = joined[-1][0], first + count - 1
            else:
                joined.append((first, first + count - 1))
        return tuple(joined)


def condition(column: str, within: Ranges) -> tuple[str, list[int]]:
    """SQL that keeps the rows whose `column` lies within, and its parameters; `column` is never a user's."""
    if not within:
        return "0", []
    if within == EVERYWHERE:
        return "1", []
    return "(" + " OR ".join([f"{column} BETWEEN ? AND ?"] * len(within)) + ")", [
        end for pair in within for end in pair
    ]
