"""F with some memories changed: each row of a forward sets coefficients of its own, mostly to 0, and everything behind
is recomputed.

A place is one number for layer, column and memory, columns counted with what stands before the prompt. Controls are
other memories as strong at the same layer and column (tracing/controls.py, definitions.md 9).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from mnemoscope.models.modules.taps import Taps
from mnemoscope.tracing.controls import draw_control
from mnemoscope.tracing.predictions import last_streams

Places = NDArray[np.int64]
DRAWS = 5
"""Draws of controls beside a curve."""


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

    def outside(self, first: int) -> NDArray[np.bool_]:
        """Which places lie in columns from `first` on."""
        columns = np.arange(self.columns) >= first
        return np.concatenate([np.repeat(columns, memories) for memories in self.memories])

    def by_layer(self, places: Places) -> Iterator[tuple[int, Places, Places]]:
        """Each layer with places, which of them lie in it, and their numbers there."""
        order = np.argsort(places, kind="stable")
        edges = np.searchsorted(places[order], self.firsts)
        for layer, (a, b) in enumerate(pairwise(edges)):
            if b > a:
                yield layer, order[a:b], places[order[a:b]] - self.firsts[layer]


@dataclass(frozen=True)
class Change:
    """Coefficients at some places: `values` in their place (None: 0). `added [column, hidden]` is added to what layers
    write, keyed by layer and branch.
    """

    places: Places
    values: Floats | None = None
    added: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)


@final
class Ablations:
    """Runs one prompt without some of its memories."""

    def __init__(self, model: LanguageModel, ids: Tensor, difference: LogitDifference, grid: Grid) -> None:
        self._model, self._ids, self._difference, self._grid = model, ids, difference, grid

    def run(self, rows: Iterable[Places | Change], *, tick: Callable[[int], None] = lambda _: None) -> Floats:
        """F `[row]` with each row's change, or its places set to 0; `tick` gets the rows of each forward."""
        return np.concatenate(
            [np.zeros(0), *(self._difference.of(some).cpu().numpy() for some in self.streams(rows, tick=tick))]
        )

    def streams(
        self, rows: Iterable[Places | Change], *, tick: Callable[[int], None] = lambda _: None
    ) -> Iterator[Tensor]:
        """The final streams `[row, hidden]` at the last position of some rows after another."""
        left = (row if isinstance(row, Change) else Change(row) for row in rows)
        while some := list(islice(left, BUDGET.ablations)):
            with torch.inference_mode():
                yield self._together(some)
            tick(len(some))

    def _together(self, rows: Sequence[Change]) -> Tensor:
        set_to: dict[int, list[tuple[int, Tensor, Tensor | float]]] = {}
        added: dict[tuple[int, int], list[tuple[int, Tensor]]] = {}
        for row, one in enumerate(rows):
            for layer, which, inside in self._grid.by_layer(one.places):
                values = 0.0 if one.values is None else torch.from_numpy(one.values[which]).float()
                set_to.setdefault(layer, []).append((row, torch.from_numpy(inside), values))
            for key, vectors in one.added.items():
                added.setdefault(key, []).append((row, vectors))

        def change(own: list[tuple[int, Tensor, Tensor | float]]) -> Callable[[Tensor], Tensor]:
            def overwrite(coefficients: Tensor) -> Tensor:
                out = coefficients.clone(memory_format=torch.contiguous_format)
                for row, inside, values in own:
                    to = values if isinstance(values, float) else values.to(out)
                    out[row].view(-1)[inside.to(out.device)] = to
                return out

            return overwrite

        changes = {layer: change(own) for layer, own in set_to.items()}
        with overwrite_coefficients(self._model, changes, own_thread=True), Taps(own_thread=True) as taps:
            for (layer, branch), own in added.items():
                self._add(layer, branch, own, taps)
            return last_streams(self._model, self._ids.expand(len(rows), -1).contiguous())

    def _add(self, layer: int, branch: int, own: Sequence[tuple[int, Tensor]], taps: Taps) -> None:
        def add(written: Tensor) -> Tensor:
            out = self._model.split_batch(written).clone()
            for row, vectors in own:
                out[row] += vectors.to(out)
            return out.view(written.shape)

        ffn = self._model.layer(layer).ffn
        if ffn.branches:
            taps.enters(ffn.branches[branch].behind, add)
        else:
            taps.leaves(ffn.exits[-1], add)


def powers(count: int, most: int) -> list[int]:
    """1, 2, 4 and so on, and at last the number itself, or `most`."""
    last = min(count, most)
    return [*(1 << bit for bit in range(last.bit_length()) if 1 << bit < last), *([last] if last else [])]


def draw_sets(
    grid: Grid, sizes: Sequence[Floats], chosen: Places, ks: Sequence[int], *, barred: Places, seed: tuple[int, ...]
) -> tuple[list[Places], list[int]]:
    """The controls of the first k chosen places for each k, draw after draw, and how many are missing for each k."""
    draws = [
        draw_controls(grid, sizes, chosen, barred=barred, generator=np.random.default_rng((*seed, draw)))
        for draw in range(DRAWS)
    ]
    sets = [np.array([place for place in own[:k] if place is not None], np.int64) for own in draws for k in ks]
    return sets, [sum(place is None for own in draws for place in own[:k]) for k in ks]


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
