"""The noun of the project: one memory of a feed-forward layer, how it is written, and how its coefficients are counted.

A memory is the pair (key, value) of index `memory` in layer `layer`, both counted from 0, written `L10.M222`;
in a layer with experts `L10.E3.M222`. Holds no weights and reads no files.

Axis names used everywhere: batch, position, layer, memory, hidden, vocab, rank (docs/terminology.md).
"""

import re
from dataclasses import dataclass

from mnemoscope.errors import MemoryIdError

HISTOGRAM_EDGES: tuple[float, ...] = (
    *(-(2.0**power) for power in range(6, -11, -1)),
    0.0,
    *(2.0**power for power in range(-10, 7)),
)
"""Between which numbers coefficients are counted together: `edges[i-1] <= x < edges[i]`; both ends are open."""
HISTOGRAM_BINS = len(HISTOGRAM_EDGES) + 1

_FORM = re.compile(r"L(\d{1,6})(?:\.E(\d{1,6}))?\.M(\d{1,9})")


@dataclass(frozen=True)
class MemoryId:
    """A memory's place; sorts by layer, expert, memory."""

    layer: int
    memory: int
    expert: int | None = None

    @staticmethod
    def parse(text: str) -> "MemoryId":
        """The memory that `text` names, such as `L10.M222`; raises MemoryIdError for anything else."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise MemoryIdError(f"{text!r} does not name a memory; write one as L10.M222 (layer 10, memory 222)")
        layer, expert, memory = found.groups()
        return MemoryId(int(layer), int(memory), None if expert is None else int(expert))

    def __str__(self) -> str:
        expert = "" if self.expert is None else f".E{self.expert}"
        return f"L{self.layer}{expert}.M{self.memory}"

    def _order(self) -> tuple[int, int, int]:
        return self.layer, -1 if self.expert is None else self.expert, self.memory

    def __lt__(self, other: "MemoryId") -> bool:
        return self._order() < other._order()
