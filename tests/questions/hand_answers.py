"""Answers whose numbers a test writes down, of a model of eight layers. Not a test itself."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from mnemoscope.questions import load_question
from mnemoscope.questions.question import EMPTY, Answer

LAYERS = 8
"""Layers 0-4 are the lower ones, 5-7 the upper: ceil(80 / 16) is 5."""

Line = tuple[int | None, str, float | None, float | None, float | None] | tuple[Any, ...]
"""Layer, name, value, the ends of its interval; and how many cases, where these are not 100."""


def answered(
    question: str, lines: Sequence[Line], *, documents: int = 50, layers: Sequence[int] = range(LAYERS)
) -> Answer:
    """An answer of these rows and of so many documents; of the eight layers, those given were mined."""
    rows = [(*line[:3], line[5] if len(line) > 5 else 100, *line[3:5]) for line in lines]
    rows.append((None, "documents", float(documents), documents, None, None))
    table = pl.DataFrame(rows, schema=EMPTY.schema, orient="row")
    return Answer(load_question(question), table, "", "", tuple(layers), LAYERS)


def total(name: str, low: float | None, high: float | None) -> Line:
    """A number over all layers, in the middle of its interval."""
    return None, name, ((low or 0) + (high or 0)) / 2, low, high
