"""Memories of a second run set back to what they contributed in a first: while the second model writes, and on prompts
on which they were not found (definitions.md 9).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.attribution.ablations import DRAWS, Ablations, Change, Grid, Places, draw_sets
from mnemoscope.foundation.intervals import Floats
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel, read_coefficients
from mnemoscope.tracing.predictions import CachedRun, best_predictions, ids_of
from mnemoscope.tracing.records import Prediction, Record
from mnemoscope.tracing.scoring.ranking import top as best_of
from mnemoscope.tracing.scoring.scores import split_rows

Patch = Literal["contribution", "coefficient"]


@dataclass(frozen=True, slots=True)
class Written(Record):
    """What a model writes: the first, the second, or the second with so many `memories` set back."""

    by: str
    memories: int | None
    text: str
    steps: tuple[Prediction, ...]

    def __str__(self) -> str:
        return f"{self.by}, {self.memories} memories," if self.memories else self.by


def coefficients_of(model: LanguageModel, ids: Tensor) -> list[Tensor]:
    """`[column, memory]` by layer, float64."""
    kept: dict[int, Tensor] = {}
    keep = lambda layer, m: kept.update({layer: m[0].double().cpu()})  # noqa: E731
    with torch.inference_mode(), read_coefficients(model, keep, own_thread=True):
        model.backbone(ids)
    return [kept[layer] for layer in sorted(kept)]


def layers_of_experts(model: LanguageModel) -> list[int]:
    """The layers in which some memories act only where a token is routed to them."""
    return [layer for layer in range(model.sizes.layers) if model.numbering(layer).routed]


@dataclass(frozen=True)
class SetBack:
    """The run of `ids` by the `second`, with the coefficients `before` of the first run, by place."""

    first: LanguageModel
    second: LanguageModel
    ids: Tensor
    grid: Grid
    before: Floats
    patch: Patch

    @classmethod
    def of(cls, first: LanguageModel, second: LanguageModel, tokens: Sequence[int], patch: Patch) -> "SetBack":
        ids, grid = ids_of(second, list(tokens)), Grid.of(second, len(tokens))
        return cls(first, second, ids, grid, grid.flat(coefficients_of(first, ids)), patch)

    def places(self, memories: Sequence[MemoryId], columns: range) -> Places:
        """The places of each memory in turn."""
        numbers = [(one.layer, self.second.numbering(one.layer).number(one) or 0) for one in memories]
        firsts, widths = self.grid.firsts.tolist(), self.grid.memories
        return np.array([firsts[at] + column * widths[at] + n for at, n in numbers for column in columns], np.int64)

    def streams(self, rows: Iterable[Places], *, columns: slice | None = None) -> Iterator[Tensor]:
        """As `Ablations.streams`, each row with its places set back."""
        source = self.first if self.patch == "contribution" else self.second
        # A coefficient would act only where the second run chose the expert.
        by_value = source is not self.second or bool(layers_of_experts(self.second))
        changes = (_change_of(source, self.grid, self.before, places, by_value=by_value) for places in rows)
        return Ablations(self.second, self.ids, None, self.grid).streams(changes, columns=columns)


def _change_of(model: LanguageModel, grid: Grid, before: Floats, places: Places, *, by_value: bool) -> Change:
    """The change that puts the first run's coefficients `before` at places of the second; with `by_value` what they
    contributed there: m1_i v1_i, by its `model`.
    """
    if not by_value:
        return Change(places, before[places])
    added: dict[tuple[int, int], Tensor] = {}
    layers, columns, memories = grid.split(places)
    for layer in np.unique(layers).tolist():
        here, values = layers == layer, model.values(layer)
        column, memory, of = columns[here], memories[here], model.branch_of(layer, torch.from_numpy(memories[here]))
        for branch in set(of.tolist()):
            fired = (of == branch).numpy() & (before[places[here]] != 0)
            writing, at = np.unique(memory[fired], return_inverse=True)
            coefficients = torch.zeros(grid.columns, len(writing))
            coefficients[column[fired], at] = torch.from_numpy(before[places[here]][fired]).float()
            added[layer, branch] = coefficients @ values[torch.from_numpy(writing)].float().cpu()
    return Change(places, added=added)


def write_on(
    model: LanguageModel, begun: Sequence[int], count: int, predict: Callable[[list[int]], Prediction]
) -> tuple[str, tuple[Prediction, ...]]:
    """The text of at most `count` tokens behind those `begun`, and the tokens."""
    words, steps, raw = list(begun), list[Prediction](), model.vocabulary()[1]
    while len(steps) < count and len(words) < model.longest and not (steps and words[-1] in model.ends):
        steps.append(predict(words))
        words.append(steps[-1].token.id)
    return b"".join(raw[step.token.id] for step in steps).decode("utf-8", "replace"), tuple(steps)


def write_plainly(model: LanguageModel) -> Callable[[list[int]], Prediction]:
    run = CachedRun(model)
    return lambda words: run.predict(words, 1)[1][0]


def write_set_back(
    first: LanguageModel, second: LanguageModel, tokens: Sequence[int], memories: Sequence[MemoryId], patch: Patch
) -> Callable[[list[int]], Prediction]:
    """Predicts what follows words that begin with `tokens`, the memories set back from their last position on."""
    start = first.reading.asked_column(first.reading.frame(tokens))

    def predict(words: list[int]) -> Prediction:
        back = SetBack.of(first, second, words, patch)
        (stream,) = back.streams([back.places(memories, range(start, back.grid.columns))])
        return next(best_predictions(second, stream, 1, changed=True))[0]

    return predict


def says_set_back(
    back: SetBack, memories: Sequence[MemoryId], ks: Sequence[int], *, many: int, seed: tuple[int, ...]
) -> NDArray[np.int64]:
    """What the second says at the `many` last positions, `[set, k, position]`, with the first k memories set back there
    (set 0), or as many controls in each of the other sets.
    """
    second, grid = back.second, back.grid
    end = second.reading.asked_column(back.ids[0].tolist()) + 1
    columns = slice(end - many, end)
    every = back.places(memories, range(end - many, end))
    sizes, counts = grid.strengths(second, coefficients_of(second, back.ids)), [k * many for k in ks]
    drawn, _ = draw_sets(grid, sizes, every, counts, barred=every, seed=seed)
    says: list[int] = []
    for streams in back.streams([*(every[:count] for count in counts), *drawn], columns=columns):
        for rows in split_rows(second, streams):
            says += best_of(second.scores(rows, projection="lens"), 1)[0][:, 0].tolist()
    return np.array(says).reshape(DRAWS + 1, len(ks), many)
