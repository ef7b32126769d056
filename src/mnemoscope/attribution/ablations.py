"""F without some memories: each row of a forward sets memories of its own to 0, and everything behind is recomputed.

A place is one number for layer, column and memory, columns counted with what stands before the prompt. Controls are
other memories as strong at the same layer and column (tracing/controls.py, definitions.md 9).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.attribution.contrast import LogitDifference
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.intervals import Floats
from mnemoscope.models import LanguageModel, overwrite_coefficients
from mnemoscope.tracing.controls import draw_control
from mnemoscope.tracing.predictions import last_streams

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """The numbers of all places of `columns` columns in layers of so many `memories`."""

    memories: tuple[int, ...]
    columns: int

    @property
    def firsts(self) -> Places:
        """The first place of each layer, and the number of all."""
        return np.concatenate([[0], np.cumsum(np.array(self.memories, np.int64) * self.columns)])

    def split(self, places: Places) -> tuple[Places, Places, Places]:
        """Layer, column and memory."""
        layer = np.searchsorted(self.firsts, places, side="right") - 1
        inside = places - self.firsts[layer]
        width = np.array(self.memories, np.int64)[layer]
        return layer, inside // width, inside % width

    def by_layer(self, places: Places) -> Iterator[tuple[int, Places]]:
        """Each layer with places, and their numbers in it."""
        ordered = np.sort(places)
        edges = np.searchsorted(ordered, self.firsts)
        for layer, (a, b) in enumerate(pairwise(edges)):
            if b > a:
                yield layer, ordered[a:b] - self.firsts[layer]


@final
class Ablations:
    """Runs one prompt without some of its memories."""

    def __init__(self, model: LanguageModel, ids: Tensor, difference: LogitDifference, grid: Grid) -> None:
        self._model, self._ids, self._difference, self._grid = model, ids, difference, grid

    def run(self, rows: Iterable[Places], *, tick: Callable[[int], None] = lambda _: None) -> Floats:
        """F `[row]` with each row's places set to 0; `tick` gets the number of rows after each forward."""
        found, left = list[Floats](), iter(rows)
        while some := list(islice(left, BUDGET.ablations)):
            found.append(self._together(some))
            tick(len(some))
        return np.concatenate(found) if found else np.zeros(0)

    def _together(self, rows: Sequence[Places]) -> Floats:
        zeroed: dict[int, list[tuple[int, Places]]] = {}
        for row, places in enumerate(rows):
            for layer, inside in self._grid.by_layer(places):
                zeroed.setdefault(layer, []).append((row, inside))

        def change(own: list[tuple[int, Places]]) -> Callable[[Tensor], Tensor]:
            def zero(coefficients: Tensor) -> Tensor:
                out = coefficients.clone(memory_format=torch.contiguous_format)
                for row, inside in own:
                    out[row].view(-1)[torch.from_numpy(inside).to(out.device)] = 0
                return out

            return zero

        changes = {layer: change(own) for layer, own in zeroed.items()}
        with torch.inference_mode(), overwrite_coefficients(self._model, changes, own_thread=True):
            streams = last_streams(self._model, self._ids.expand(len(rows), -1).contiguous())
            found: Floats = self._difference.of(streams).cpu().numpy()
        return found


def powers(count: int, most: int) -> list[int]:
    """1, 2, 4 and so on, and at last the number itself, or `most`."""
    last = min(count, most)
    return [*(1 << bit for bit in range(last.bit_length()) if 1 << bit < last), *([last] if last else [])]


def draw_controls(
    grid: Grid, sizes: Sequence[Floats], chosen: Places, *, barred: Places, generator: np.random.Generator
) -> list[int | None]:
    """A control's place for each chosen one in turn, None where none is left. `sizes` are each layer's |m_i| norm(v_i)
    `[column, memory]`.
    """
    taken: dict[tuple[int, int], set[int]] = {}
    for layer, column, memory in zip(*grid.split(np.union1d(chosen, barred)), strict=True):
        taken.setdefault((layer, column), set()).add(int(memory))
    found: list[int | None] = []
    for layer, column, memory in zip(*grid.split(chosen), strict=True):
        here = taken[layer, column]
        other = draw_control(sizes[layer][column], int(memory), barred=here, generator=generator)
        if other is not None:
            here.add(other)
        first = grid.firsts[layer] + column * grid.memories[layer]
        found.append(None if other is None else int(first + other))
    return found
