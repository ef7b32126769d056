"""The tables that many pages need, kept in memory: values, activity, patterns, and who fires where.

For a model of GPT-2's size these are some 100 MB; triggers and sentences, which are larger, are read for each page.
Kept by the edition, so that they are read once and again only when the atlas's folder changes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.errors import AtlasDamaged
from mnemoscope.pages.edition import Edition

_SPAN = 1 << 24
"""More than any layer has memories, and any sentence positions."""


def table(edition: Edition, name: str, *, layer: int) -> pl.DataFrame:
    """The rows of `values` or `activity` of one layer, by memory."""
    return edition.tables.get((name, layer), lambda: edition.atlas.table(name, layer=layer).sort("memory"))


def row(edition: Edition, name: str, *, layer: int, memory: int) -> dict[str, Any]:
    """The one row of a memory in `values` or `activity`."""
    rows = table(edition, name, layer=layer)
    found = rows.row(memory, named=True) if memory < rows.height else None
    if found is None or found["memory"] != memory:
        raise AtlasDamaged(f"{edition.atlas.path}: table {name} does not have one row for each memory of layer {layer}")
    return found


def top_token(edition: Edition, layer: int, *, memory: int) -> int:
    """The token that the value ranks first."""
    tops = edition.tables.get(
        ("tops", layer), lambda: table(edition, "values", layer=layer)["top_tokens"].list.first().to_numpy()
    )
    return int(tops[memory])


@dataclass(frozen=True)
class _Patterns:
    rows: pl.DataFrame
    places: Any


def patterns(edition: Edition, layer: int, *, memory: int) -> list[dict[str, Any]] | None:
    """The memory's patterns in their order; None where patterns were not made."""
    if not edition.atlas.has("patterns"):
        return None

    def make() -> _Patterns:
        rows = edition.atlas.table("patterns").sort("layer", "memory", "pattern")
        return _Patterns(rows, rows["layer"].to_numpy().astype(np.int64) * _SPAN + rows["memory"].to_numpy())

    found = edition.tables.get("patterns", make)
    first, last = np.searchsorted(found.places, [layer * _SPAN + memory, layer * _SPAN + memory + 1])
    return found.rows.slice(int(first), int(last - first)).to_dicts()


@dataclass(frozen=True)
class _Places:
    """All positive triggers, sorted by prefix: sentence and position as one number, and the memory as another."""

    prefixes: Any
    memories: Any


def sharing(edition: Edition, prefixes: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """How many of these prefixes (sentence, position) are positive triggers of each (layer, memory)."""
    found = edition.tables.get("places", lambda: _places(edition))
    asked = np.array([sentence * _SPAN + position for sentence, position in prefixes], dtype=np.int64)
    first, last = np.searchsorted(found.prefixes, asked, "left"), np.searchsorted(found.prefixes, asked, "right")
    pieces = [found.memories[start:end] for start, end in zip(first, last, strict=True)]
    names, counts = np.unique(np.concatenate(pieces) if pieces else found.memories[:0], return_counts=True)
    return {(int(name) // _SPAN, int(name) % _SPAN): int(count) for name, count in zip(names, counts, strict=True)}


def _places(edition: Edition) -> _Places:
    prefixes, memories = [], []
    for layer in edition.atlas.layers:
        rows = edition.atlas.best_triggers(layer, None)
        prefixes.append(rows["sentence"].to_numpy().astype(np.int64) * _SPAN + rows["position"].to_numpy())
        memories.append(layer * _SPAN + rows["memory"].to_numpy().astype(np.int64))
    whole = np.concatenate(prefixes)
    order = np.argsort(whole, kind="stable")
    return _Places(whole[order], np.concatenate(memories)[order])
