"""How memories of experts stand in tables, and how they are counted here.

In a table of an experts model `expert` and `memory` name a memory, in a dense layer `expert` is null (definitions.md
section 7.1). Whoever computes counts the memories of a layer through (`Numbering`), so that a layer is a layer: here
one is turned into the other. What an atlas gives out has `memory` counted through, and `expert` beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.foundation.memory_names import Numbering

Numberings = Mapping[int, Numbering]
"""Of every layer of an experts model; empty for any other model."""
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)

_NAMES = (("layer", "expert", "memory"), ("other_layer", "other_expert", "other_memory"))
"""The columns that name a memory together."""
_SPAN = 1 << 15


def numberings_of(memories: Sequence[int], experts: Sequence[Mapping[str, Any] | None] | None) -> Numberings:
    """The numberings of a manifest's layers."""
    if experts is None:
        return {}
    return {layer: Numbering.of(experts[layer], count) for layer, count in enumerate(memories)}


def with_experts(columns: Mapping[str, Any], numberings: Numberings, layer: int | None) -> dict[str, Any]:
    """The columns of a table as they are stored: memories that were counted through, by expert and memory.

    `layer` is that of the whole table; None where the rows say it.
    """
    found = dict(columns)
    if not numberings:
        return found
    for of, expert, memory in _NAMES:
        if memory in found:
            numbers = np.asarray(found[memory])
            layers = np.asarray(found[of]) if of in found else np.full(len(numbers), layer)
            found[expert], found[memory] = _name_all(numbers, layers, numberings)
    return found


def _name_all(
    numbers: NDArray[Any], layers: NDArray[Any], numberings: Numberings
) -> tuple[Any, NDArray[np.int32]]:
    experts, within = np.full(len(numbers), -1, np.int16), numbers.astype(np.int32)
    for layer in np.unique(layers).tolist():
        numbering, rows = numberings[layer], layers == layer
        if numbering.routed is not None:
            experts[rows], within[rows] = numbering.experts(numbers[rows]), numbering.within(numbers[rows])
    return np.ma.masked_equal(experts, -1), within


def counted_through(rows: Frame, numberings: Numberings, layer: int | None) -> Frame:
    """The rows of a stored table with its memories counted through their layer."""
    return _shift(rows, numberings, layer, 1)


def as_stored(rows: Frame, numberings: Numberings, layer: int | None) -> Frame:
    """The rows of `counted_through` as they are stored."""
    return _shift(rows, numberings, layer, -1)


def _shift(rows: Frame, numberings: Numberings, layer: int | None, sign: int) -> Frame:
    if not numberings:
        return rows
    names = rows.collect_schema().names()
    for of, expert, memory in _NAMES:
        if memory in names and expert in names:
            at = pl.col(of).cast(pl.Int64) if of in names else pl.lit(layer, pl.Int64)
            there = {own: found for own, found in numberings.items() if of in names or own == layer}
            first = (at * _SPAN + pl.col(expert).cast(pl.Int64).fill_null(0)).replace_strict(
                _firsts(there), return_dtype=pl.Int32
            )
            rows = rows.with_columns((pl.col(memory) + sign * first).cast(pl.Int32).alias(memory))
    return rows


def _firsts(numberings: Numberings) -> dict[int, int]:
    """The number of the first memory of every expert, by layer and expert."""
    return {
        layer * _SPAN + expert: first
        for layer, numbering in numberings.items()
        for expert, first in enumerate(numbering.firsts)
    }


def with_names(columns: Sequence[str]) -> list[str]:
    """The columns to be read so that memories among them can be counted through."""
    needed = [expert for _, expert, memory in _NAMES if memory in columns and expert not in columns]
    return [*columns, *needed]
