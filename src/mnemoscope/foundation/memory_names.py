"""The project's noun: one memory of a feed-forward layer, its name, and the bins of its coefficients.

A memory is the pair (key, value) of index `memory` in layer `layer`, both counted from 0, written `L10.M222`; in a
routed expert `L10.E3.M222`, in a shared one `L10.S0.M5`. Holds no weights and reads no files.

Axis names used everywhere: batch, position, layer, memory, hidden, vocab, rank (docs/terminology.md).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.errors import MemoryIdError

HISTOGRAM_EDGES: tuple[float, ...] = (
    *(-(2.0**power) for power in range(6, -11, -1)),
    0.0,
    *(2.0**power for power in range(-10, 7)),
)
"""Edges of the bins of coefficients: `edges[i-1] <= x < edges[i]`; the outer bins are open."""
HISTOGRAM_BINS = len(HISTOGRAM_EDGES) + 1
ZERO_BIN = HISTOGRAM_EDGES.index(0.0) + 1
"""The bin from zero to the least positive edge; also the number of bins below zero."""

ABLATED_PARTS: tuple[float, ...] = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.9375, 1.0)
"""Shares of a layer's memories that are ablated to measure the width it needs; of n memories `int(part * n)`."""
EXIT_THRESHOLDS: tuple[float, ...] = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Probabilities of a residual's top token above which a token could exit there."""
MEMORISED_TOKENS, MEMORISED_GIVEN = 64, 32
"""Of a document's first MEMORISED_TOKENS tokens the model sees MEMORISED_GIVEN; memorised if it writes all others."""

_FORM = re.compile(r"L([0-9]{1,6})(?:\.([ES])([0-9]{1,6}))?\.M([0-9]{1,9})")


@dataclass(frozen=True)
class MemoryId:
    """A memory's place; sorts by layer, expert (routed before shared), memory. At most one of the experts is set."""

    layer: int
    memory: int
    expert: int | None = None
    shared: int | None = None

    @staticmethod
    def is_one(text: str) -> bool:
        """Whether the text names one memory, which need not exist."""
        return _FORM.fullmatch(text.strip()) is not None

    @staticmethod
    def parse(text: str) -> "MemoryId":
        """The memory that `text` names, such as `L10.M222`; raises MemoryIdError for anything else."""
        match = _FORM.fullmatch(text.strip())
        if match is None:
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise MemoryIdError(f"{shown!r} does not name a memory; write one as L10.M222 (layer 10, memory 222)")
        layer, kind, expert, memory = match.groups()
        routed, shared = (int(expert) if kind == letter else None for letter in "ES")
        return MemoryId(int(layer), int(memory), routed, shared)

    def __str__(self) -> str:
        return f"L{self.layer}{self.expert_text}.M{self.memory}"

    @property
    def expert_text(self) -> str:
        """The expert's part of the name, such as `.E3`; empty in a dense layer."""
        if self.shared is not None:
            return f".S{self.shared}"
        return "" if self.expert is None else f".E{self.expert}"

    def _order(self) -> tuple[int, int, int, int]:
        routed, shared = (-1 if number is None else number for number in (self.expert, self.shared))
        return self.layer, shared, routed, self.memory

    def __lt__(self, other: "MemoryId") -> bool:
        return self._order() < other._order()


@dataclass(frozen=True)
class Numbering:
    """Numbers one layer's memories from 0: those of each routed expert in turn, then of each shared one.

    `widths` are the memories of each expert; a dense layer has one, and `routed` None.
    """

    widths: tuple[int, ...]
    routed: int | None = None

    @staticmethod
    def of(document: Mapping[str, Any] | None, count: int) -> "Numbering":
        """The numbering of a `document`, or of a dense layer with `count` memories."""
        if document is None:
            return Numbering((count,))
        routed = int(document["routed"])
        return Numbering((int(document["memories"]),) * routed + tuple(document["shared"]), routed)

    def document(self) -> dict[str, Any] | None:
        if self.routed is None:
            return None
        width = self.widths[0] if self.routed else 0
        return {"routed": self.routed, "memories": width, "shared": list(self.widths[self.routed :])}

    @property
    def count(self) -> int:
        return sum(self.widths)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.widths[:-1]))

    def name(self, layer: int, number: int) -> MemoryId:
        if self.routed is None:
            return MemoryId(layer, number)
        expert = int(self.experts(np.array([number]))[0])
        return self.name_in(layer, expert, number - self.firsts[expert])

    def name_in(self, layer: int, expert: int | None, memory: int) -> MemoryId:
        """The memory of a table's row, whose `expert` counts routed, then shared experts; None in a dense layer."""
        if expert is None or self.routed is None:
            return MemoryId(layer, memory)
        if expert < self.routed:
            return MemoryId(layer, memory, expert)
        return MemoryId(layer, memory, shared=expert - self.routed)

    def number(self, memory: MemoryId) -> int | None:
        """None for a memory that the layer does not have."""
        expert = (memory.expert or 0) if memory.shared is None else (self.routed or 0) + memory.shared
        if not (0 <= expert < len(self.widths) and 0 <= memory.memory < self.widths[expert]):
            return None
        number = self.firsts[expert] + memory.memory
        return number if self.name(memory.layer, number) == memory else None

    def experts(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        return (np.searchsorted(self.firsts, numbers, side="right") - 1).astype(np.int16)

    def within(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        within: NDArray[np.int32] = (numbers - np.array(self.firsts)[self.experts(numbers)]).astype(np.int32)
        return within

    def range_text(self) -> str:
        """The memories in words: `memories 0-1023`, `experts E0-E7 with memories 0-511`."""
        if self.routed is None:
            return f"memories 0-{self.count - 1}"
        parts = [f"experts E0-E{self.routed - 1} with memories 0-{self.widths[0] - 1}"] if self.routed else []
        parts += [f"S{i} with 0-{width - 1}" for i, width in enumerate(self.widths[self.routed :])]
        return " and ".join(parts)


def most_experts(numberings: Iterable[Numbering]) -> tuple[int, int]:
    mixtures = [(one.routed, len(one.widths) - one.routed) for one in numberings if one.routed is not None]
    return max((routed for routed, _ in mixtures), default=0), max((shared for _, shared in mixtures), default=0)
