"""The two numberings of experts' memories, stored and computed, and the conversion between them.

A stored table names a memory by `expert` and `memory`; `expert` is null in a dense layer (definitions.md section 7.1).
Computation counts the memories of a layer through (`Numbering`), so that every layer has one form. Rows that an atlas
returns have `memory` counted through, and `expert` beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl

from mnemoscope.foundation.memory_names import Numbering

Numberings = Mapping[int, Numbering]
"""By layer, of a model of experts; empty for any other model."""
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

_NAMES = (("layer", "expert", "memory"), ("other_layer", "other_expert", "other_memory"))
_SPAN = 1 << 15


def with_experts(columns: Mapping[str, Any], numberings: Numberings, layer: int | None) -> dict[str, Any]:
    """The columns as stored: memories counted through become expert and memory. `layer`: None if a column has it."""
    stored = dict(columns)
    if not numberings:
        return stored
    for of, expert, memory in _NAMES:
        if memory in stored:
            numbers = np.asarray(stored[memory])
            layers = np.asarray(stored[of]) if of in stored else np.full(len(numbers), layer)
            experts, within = np.full(len(numbers), -1, np.int16), numbers.astype(np.int32)
            for mined in np.unique(layers).tolist():
                numbering, rows = numberings[mined], layers == mined
                if numbering.routed is not None:
                    experts[rows], within[rows] = numbering.experts(numbers[rows]), numbering.within(numbers[rows])
            stored[expert], stored[memory] = np.ma.masked_equal(experts, -1), within
    return stored


def as_stored(rows: Frame, numberings: Numberings, layer: int | None) -> Frame:
    return counted_through(rows, numberings, layer, sign=-1)


def counted_through(rows: Frame, numberings: Numberings, layer: int | None, *, sign: int = 1) -> Frame:
    """The rows of a stored table, with memories counted through their layer; `sign` -1: the inverse."""
    if not numberings:
        return rows
    names = rows.collect_schema().names()
    for of, expert, memory in _NAMES:
        if memory in names and expert in names:
            at = pl.col(of).cast(pl.Int64) if of in names else pl.lit(layer, pl.Int64)
            firsts = {
                mined * _SPAN + number: first
                for mined, numbering in numberings.items()
                if of in names or mined == layer
                for number, first in enumerate(numbering.firsts)
            }
            place = at * _SPAN + pl.col(expert).cast(pl.Int64).fill_null(0)
            first = place.replace_strict(firsts, return_dtype=pl.Int32)
            rows = rows.with_columns((pl.col(memory) + sign * first).cast(pl.Int32).alias(memory))
    return rows


def with_names(columns: Sequence[str]) -> list[str]:
    """The columns to read so that memories among them can be counted through."""
    return [*columns, *(expert for _, expert, memory in _NAMES if memory in columns and expert not in columns)]
