"""The form of every answer: estimates by layer and name in one table, and what the paper says beside them.

An answer is a data frame with the columns of `schema.ANSWER_COLUMNS` (layer null for totals) and the question's own key
columns after them. Holds no question and reads no atlas.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from mnemoscope.atlas.schema import ANSWER_COLUMNS
from mnemoscope.intervals import Estimate

Form = Literal["share", "number", "count"]
"""How a number is to be read: a share of 1, a number with decimals, a count."""

MEMORIES = "over memories (Wilson)"
"""What the intervals of a question about memories say of themselves."""


@dataclass(frozen=True)
class Claim:
    """One statement of the paper's text: what it says, the stated figure, and the total of the answer beside it."""

    text: str
    paper: str
    name: str
    form: Form


@dataclass(frozen=True)
class Paper:
    """Where the paper asks a question: figure, section, the question in one sentence, and its stated results."""

    figure: str
    section: str
    question: str
    claims: tuple[Claim, ...] = ()


class Answer:
    """An answer that is being put together, row by row.

    `own` names the question's own key columns and their types; a row that does not give one leaves it null.
    """

    def __init__(self, own: Mapping[str, Any] | None = None) -> None:
        self._own = dict(own or {})
        self._rows: list[tuple[Any, ...]] = []

    def add(self, layer: int | None, name: str, estimate: Estimate, **own: Any) -> None:
        """Adds one row; `layer` None is a total, and what is not finite becomes null."""
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
