"""F with some memories changed: each row of a forward sets coefficients of its own, mostly to 0, and everything behind
is recomputed.

A place is one number for layer, column and memory, columns counted with what stands before the prompt. Controls are
other memories as strong at the same layer and column (tracing/controls.py, definitions.md 9).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.attribution.contrast import LogitDifference
from mnemoscope.attribution.gradients import tap_written
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.intervals import Floats
from mnemoscope.models import LanguageModel, overwrite_coefficients
from mnemoscope.models.modules.taps import Taps
from mnemoscope.tracing.controls import draw_control
from mnemoscope.tracing.predictions import last_streams
from mnemoscope.tracing.scoring.scores import contributions, value_norms

Places = NDArray[np.int64]
DRAWS = 5
"""Draws of controls beside a curve."""


@dataclass(frozen=True)
class Grid:
    """The numbers of all places of `columns` columns in layers of so many `memories`; columns before `first` and from
    `end` on are the frame.
    """

    memories: tuple[int, ...]
    columns: int
    first: int = 0
    end: int | None = None

    @classmethod
    def of(cls, model: LanguageModel, tokens: int) -> "Grid":
        reading = model.reading
        prompt = reading.own(tokens)
        return cls(model.sizes.memories, reading.columns(tokens), prompt.start + reading.first, prompt.stop)

    @cached_property
    def firsts(self) -> Places:
        """The first place of each layer, and the number of all."""
        return np.concatenate([[0], np.cumsum(np.array(self.memories, np.int64) * self.columns)])

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Which places lie outside the frame."""
        columns = np.zeros(self.columns, np.bool_)
        columns[self.first : self.end] = True
        return np.concatenate([np.repeat(columns, memories) for memories in self.memories])

    def split(self, places: Places) -> tuple[Places, Places, Places]:
        """Layer, column and memory."""
        layer = np.searchsorted(self.firsts, places, side="right") - 1
        width = np.array(self.memories, np.int64)[layer]
        column, memory = np.divmod(places - self.firsts[layer], width)
        return layer, column, memory

    def flat(self, layers: Iterable[Any], first: int = 0) -> NDArray[Any]:
        """By place, numbers `[column, memory]` of every layer, of which the first stand at column `first`; 0 at others.
        What lies outside the grid is left out.
        """
        by_place = []
        for numbers in map(np.asarray, layers):
            every = np.zeros((self.columns, numbers.shape[1]), numbers.dtype)
            here = slice(max(first, 0), max(first + len(numbers), 0))
            every[here] = numbers[max(-first, 0) :][: len(every[here])]
            by_place.append(every.ravel())
        return np.concatenate(by_place)

    def strengths(self, model: LanguageModel, coefficients: Sequence[Tensor]) -> Floats:
        """|m_i| norm(v_i) by place, of coefficients `[column, memory]` by layer."""
        return self.flat(contributions(m, value_norms(model, layer).cpu()) for layer, m in enumerate(coefficients))

    def across(self, places: Places) -> Places:
        """The memory of each place, counted through all layers."""
        layers, _, memories = self.split(places)
        return np.cumsum([0, *self.memories])[layers] + memories

    def sum_columns(self, values: Floats) -> Floats:
        """Sums over columns, by memory of all layers, of a number for every place."""
        parts = np.split(values, self.firsts[1:-1])
        return np.concatenate([part.reshape(self.columns, -1).sum(0) for part in parts])

    def names(self, model: LanguageModel, places: Places) -> dict[str, list[Any]]:
        """The columns `memory` and `position` of a table of places."""
        layers, columns, memories = (each.tolist() for each in self.split(places))
        return {
            "memory": [str(model.numbering(at).name(at, one)) for at, one in zip(layers, memories, strict=True)],
            "position": [column - model.reading.offset for column in columns],
        }


def rank(places: Places, by: Floats) -> Places:
    """The places with the largest numbers first; `by` has one for every place."""
    return places[np.argsort(-by[places], kind="stable")]


@dataclass(frozen=True)
class Change:
    """Coefficients at some places: `values` in their place. `added [column, hidden]` is added to what layers write,
    keyed by layer and branch.
    """

    places: Places
    values: Floats | float = 0.0
    added: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)


@final
class Ablations:
    """Runs one prompt without some of its memories."""

    def __init__(self, model: LanguageModel, ids: Tensor, difference: LogitDifference | None, grid: Grid) -> None:
        self._model, self._ids, self._difference, self._grid = model, ids, difference, grid

    def run(self, rows: Iterable[Places | Change], *, tick: Callable[[int], None] = lambda _: None) -> Floats:
        """F `[row]` with each row's change, or its places set to 0; `tick` gets the number of rows done."""
        assert self._difference is not None
        differences = np.zeros(0)
        for streams in self.streams(rows):
            differences = np.concatenate([differences, self._difference.of(streams).cpu().numpy()])
            tick(len(differences))
        return differences

    def streams(self, rows: Iterable[Places | Change], *, columns: slice | None = None) -> Iterator[Tensor]:
        """The final streams `[row, hidden]` at the asked column of some rows after another, or at all of `columns`."""
        left = (row if isinstance(row, Change) else Change(row) for row in rows)
        while some := list(islice(left, BUDGET.ablations)):
            with torch.inference_mode():
                yield self._together(some, columns)

    def _together(self, rows: Sequence[Change], columns: slice | None) -> Tensor:
        overwriting: dict[int, list[tuple[int, Tensor, Tensor]]] = {}
        adding: dict[tuple[int, int], list[tuple[int, Tensor]]] = {}
        for row, one in enumerate(rows):
            layers, values = self._grid.split(one.places)[0], np.broadcast_to(one.values, one.places.shape)
            for layer in np.unique(layers).tolist():
                here = layers == layer
                inside = torch.from_numpy(one.places[here] - self._grid.firsts[layer])
                overwriting.setdefault(layer, []).append((row, inside, torch.from_numpy(values[here]).float()))
            for key, vectors in one.added.items():
                adding.setdefault(key, []).append((row, vectors))

        def change(layer: int, coefficients: Tensor) -> Tensor:
            out = coefficients.clone(memory_format=torch.contiguous_format)
            for row, inside, values in overwriting[layer]:
                out[row].view(-1)[inside.to(out.device)] = values.to(out)
            return out

        changes = {layer: partial(change, layer) for layer in overwriting}
        with overwrite_coefficients(self._model, changes, own_thread=True), Taps(own_thread=True) as taps:
            for (layer, branch), by_row in adding.items():
                tap_written(self._model, layer, branch, taps, partial(self._add, by_row))
            return last_streams(self._model, self._ids.expand(len(rows), -1).contiguous(), columns=columns)

    def _add(self, by_row: Sequence[tuple[int, Tensor]], written: Tensor) -> Tensor:
        out = self._model.split_batch(written).clone()
        for row, vectors in by_row:
            out[row] += vectors.to(out)
        return out.view(written.shape)


def powers(count: int, most: int) -> list[int]:
    """1, 2, 4 and so on, and at last the number itself, or `most`."""
    last = min(count, most)
    return [*(1 << bit for bit in range(last.bit_length()) if 1 << bit < last), *([last] if last else [])]


def draw_sets(
    grid: Grid, sizes: Floats, places: Places, ks: Sequence[int], *, barred: Places, seed: tuple[int, ...]
) -> tuple[list[Places], list[int]]:
    """The controls of the first k places for each k, draw after draw, and how many are missing for each k."""
    draws = [
        draw_controls(grid, sizes, places, barred=barred, generator=np.random.default_rng((*seed, draw)))
        for draw in range(DRAWS)
    ]
    missing = [sum(int((controls[:k] < 0).sum()) for controls in draws) for k in ks]
    return [controls[:k][controls[:k] >= 0] for controls in draws for k in ks], missing


def draw_controls(
    grid: Grid, sizes: Floats, places: Places, *, barred: Places, generator: np.random.Generator
) -> Places:
    """A control for each of `places` in turn, -1 where none is left; `sizes` are all places' |m_i| norm(v_i)."""
    taken: dict[tuple[int, int], set[int]] = {}
    for layer, column, memory in zip(*grid.split(np.union1d(places, barred)), strict=True):
        taken.setdefault((layer, column), set()).add(int(memory))
    controls = np.full(len(places), -1, np.int64)
    for at, (layer, column, memory) in enumerate(zip(*grid.split(places), strict=True)):
        first, here = grid.firsts[layer] + column * grid.memories[layer], taken[layer, column]
        beside = sizes[first : first + grid.memories[layer]]
        other = draw_control(beside, int(memory), barred=here, generator=generator)
        if other is not None:
            here.add(other)
            controls[at] = first + other
    return controls


def spread(values: Floats) -> tuple[float, float, float]:
    """Lowest, median and highest."""
    return float(values.min()), float(np.median(values)), float(values.max())
