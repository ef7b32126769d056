"""The answers of an atlas as a report reads them: by name, layer by layer, or the reason why there is none.

Nothing is computed here. Rows whose value is not defined are left out, so what is drawn is always a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from mnemoscope.atlas.read import first_upper_layer
from mnemoscope.formatting import Form
from mnemoscope.questions.question import Paper, Question

EMPTY = pl.DataFrame(
    schema={
        "layer": pl.Int16,
        "name": pl.String,
        "value": pl.Float64,
        "count": pl.Int64,
        "low": pl.Float64,
        "high": pl.Float64,
    }
)


@dataclass(frozen=True)
class Row:
    """One number of an answer: of a layer, or (layer None) a total; `count` cases; its 95 % interval if it has one.

    `form` is how it is to be read, `own` the question's own columns.
    """

    layer: int | None
    name: str
    value: float
    count: int
    low: float | None
    high: float | None
    own: Mapping[str, Any]
    form: Form


@dataclass(frozen=True)
class Answered:
    """A question with its answer: the table, what its intervals are over, and why it is missing if so.

    `missing` is one sentence, empty where there is an answer. `layers` are the layers of the atlas, `depth` those of
    the model: the paper's layers 11-16 of 16 are the *upper* ones, `layer >= ceil(10 * depth / 16)`.
    """

    asked: Question
    table: pl.DataFrame
    interval: str
    missing: str
    layers: tuple[int, ...]
    depth: int

    @property
    def question(self) -> str:
        """The question's id."""
        return self.asked.id

    @property
    def paper(self) -> Paper:
        """What the paper says."""
        return self.asked.paper

    def label(self, name: str) -> str:
        """What the number of that name is called."""
        return self.asked.number(name).label

    @property
    def upper(self) -> tuple[int, ...]:
        """The mined layers that stand for the paper's layers 11-16."""
        return tuple(layer for layer in self.layers if layer >= first_upper_layer(self.depth))

    @property
    def lower(self) -> tuple[int, ...]:
        """The mined layers that stand for the paper's layers 1-10."""
        return tuple(layer for layer in self.layers if layer < first_upper_layer(self.depth))

    def names(self) -> tuple[str, ...]:
        """Every name with at least one number, in order of appearance."""
        return tuple(dict.fromkeys(self._defined()["name"].to_list()))

    def rows(self, name: str) -> list[Row]:
        """The numbers of that name, by layer; without the total."""
        return [row for row in self._rows(name) if row.layer is not None]

    def total(self, name: str) -> Row | None:
        """The number of that name over all layers; None where there is none."""
        return next((row for row in self._rows(name) if row.layer is None), None)

    def at(self, name: str, layer: int) -> Row | None:
        """The number of that name in one layer; None where there is none."""
        return next((row for row in self._rows(name) if row.layer == layer), None)

    def mean(self, name: str, layers: Sequence[int]) -> float | None:
        """The mean over those of the layers that have the number, each weighing the same; None where none has."""
        values = [row.value for row in self.rows(name) if row.layer in layers]
        return sum(values) / len(values) if values else None

    def _defined(self) -> pl.DataFrame:
        return self.table.filter(pl.col("value").is_not_null() & pl.col("value").is_finite())

    def _rows(self, name: str) -> list[Row]:
        found = self._defined().filter(pl.col("name") == name).sort("layer", nulls_last=True, maintain_order=True)
        return [_row(one, self.asked.number(name).form) for one in found.to_dicts()]


def _row(found: dict[str, Any], form: Form) -> Row:
    own = {name: value for name, value in found.items() if name not in EMPTY.columns}
    layer, name, value, count, low, high = (found[column] for column in EMPTY.columns)
    return Row(layer, name, value, count, low, high, own, form)
