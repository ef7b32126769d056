"""The form of every answer: estimates by layer and name in one table.

An answer is a data frame with the columns of `schema.ANSWER_COLUMNS` (layer null for totals) and the question's own key
columns after them. Holds no question and reads no atlas.
"""

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from mnemoscope.atlas.schema import ANSWER_COLUMNS
from mnemoscope.intervals import Estimate
from mnemoscope.questions.question import Question

MEMORIES = "over memories (Wilson)"
"""What the intervals of a question about memories say of themselves."""
NO_TARGET = "no memory of this atlas has a target; mine more text"
"""What a question about values says where it finds nothing."""


class Answer:
    """An answer that is being put together, row by row.

    Only numbers that the question declares are taken. `own` names the question's own key columns and their types; a
    row that does not give one leaves it null.
    """

    def __init__(self, question: Question, own: Mapping[str, Any] | None = None) -> None:
        self._names = {number.name for number in question.numbers}
        self._own = dict(own or {})
        self._rows: list[tuple[Any, ...]] = []

    def add(self, layer: int | None, name: str, estimate: Estimate, **own: Any) -> None:
        """Adds one row; `layer` None is a total, and what is not finite becomes null."""
        if name not in self._names:
            raise ValueError(f"{name} is no number that the question declares")
        if unknown := own.keys() - self._own.keys():
            raise ValueError(f"{name}: {sorted(unknown)} are no columns of this answer")
        numbers = (_finite(estimate.value), int(estimate.count), _finite(estimate.low), _finite(estimate.high))
        self._rows.append((layer, name, *numbers, *(own.get(column) for column in self._own)))

    def frame(self) -> pl.DataFrame:
        """The answer as a table: layers in the order in which they were added, totals last."""
        types = {field.name: _TYPES[str(field.type)] for field in ANSWER_COLUMNS} | self._own
        rows = [row for row in self._rows if row[0] is not None] + [row for row in self._rows if row[0] is None]
        return pl.DataFrame(rows, schema=types, orient="row")


_TYPES = {"int16": pl.Int16, "string": pl.String, "double": pl.Float64, "int64": pl.Int64}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
