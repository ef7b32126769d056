"""Everything that an atlas says of one memory, made once: for `show`, its JSON, the page, and what is exported.

A table's rows are read when they are first asked for. What follows from them for people (what a pattern explains, how
active the memory is, the probabilities of its tokens) is made here, and only written elsewhere.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, final

import polars as pl

from mnemoscope.atlas.experts import as_stored
from mnemoscope.atlas.features import STRONG, strongly_active
from mnemoscope.atlas.read import BEST_TRIGGERS, Atlas, MemoryRows, with_texts
from mnemoscope.errors import AtlasUnfinished, ModelUnsupported
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, MemoryId
from mnemoscope.foundation.near_duplicates import count_different

Row = dict[str, Any]
End = Literal["top", "bottom"]
ENDS: tuple[End, ...] = ("top", "bottom")
_OF_PARTS = ("triggers", "activity")
_TABLES = (
    *(*_OF_PARTS, "value", "neighbours", "patterns", "labels", "importance", "token_activations"),
    *("readings", "key_readings"),
)
"""What there may be, in the order of the document; read by the method of its name."""
_SINGLE = ("activity", "value", "importance")
_NAMELESS = ("labels", "token_activations")
"""Those whose rows of one memory do not name it."""
_TOGETHER = 256
"""Memories that are read together: as many as a row group of triggers spans."""


@final
class MemoryDocument:
    """The rows of one memory; `read` are those that were read before. Raises MemoryIdError, and what reading raises."""

    def __init__(self, atlas: Atlas, id: MemoryId, **read: list[Row] | None) -> None:
        self.atlas, self.memory = atlas, atlas[id]
        self._read = read

    def rows(self, table: str) -> list[Row] | None:
        """The rows of a table, with texts of tokens; None where the atlas does not have it."""
        if table not in self._read:
            rows = _read(self.atlas, self.memory, table)
            self._read[table] = None if rows is None else rows.to_dicts()
        return self._read[table]

    def row(self, table: str) -> Row | None:
        """The only row of a table; None without one."""
        return next(iter(self.rows(table) or ()), None)

    @cached_property
    def triggers(self) -> list[Row]:
        """Those of both signs, positive ones first, each with the `tokens` of its sentence."""
        atlas, id = self.atlas, self.memory.id
        rows = atlas.rows_where("triggers", id.layer, column="memory", ids=[atlas.number(id)])
        rows = with_texts(atlas, as_stored(rows, atlas.numberings, id.layer), sentences="tokens")
        return sorted(rows.to_dicts(), key=lambda row: (-row["sign"], row["rank"]))

    @property
    def best(self) -> list[Row]:
        """The triggers in which patterns are sought."""
        return [row for row in self.triggers if row["sign"] == 1 and row["rank"] < BEST_TRIGGERS]

    @cached_property
    def patterns(self) -> list[Row] | None:
        """Its patterns, with how many `different` ones of the best triggers each explains."""
        rows = self.rows("patterns")
        return rows and [row | {"different": count_different(row["triggers"], self.best)} for row in rows]

    @cached_property
    def activity(self) -> Row:
        """Its row, with the `share` of prefixes that fires it, how often either feature is strongly active, and the
        `bins` of the histogram, from `low` to `high` (None: without end).
        """
        row = self.row("activity")
        assert row is not None
        ends = zip(pairwise([None, *HISTOGRAM_EDGES, None]), row["histogram"], strict=True)
        strong = strongly_active(pl.DataFrame([row], schema_overrides={"min": pl.Float64, "max": pl.Float64})).row(0)
        return {
            **row,
            **dict(zip(STRONG, strong, strict=True)),
            "all_prefixes": row.get("all_prefixes", row["prefixes"]),
            "share": row["positive"] / row["prefixes"] if row["prefixes"] else None,
            "bins": [{"low": low, "high": high, "count": count} for (low, high), count in ends],
        }

    def value_tokens(self, end: End) -> list[tuple[int, float, float | None]]:
        """The value's top or bottom tokens, each with its score and its probability at coefficient 1 or, of a bottom
        one, under the negated value, which only a linear head knows.
        """
        value = self.row("value")
        assert value is not None
        best, most, sign = value["top_scores"][0], value["max_probability"], 1 if end == "top" else -1
        is_known = sign == 1 or self.atlas.manifest.model.head != "adaptive softmax"
        return [
            (token, score, most * math.exp(sign * score - best) if is_known else None)
            for token, score in zip(value[f"{end}_tokens"], value[f"{end}_scores"], strict=True)
        ]

    def to_dict(self) -> Row:
        """The document of `show --json`."""
        tables = {name: rows for name in _TABLES if (rows := self.rows(name)) is not None}
        lists = {name: next(iter(rows), None) if name in _SINGLE else rows for name, rows in tables.items()}
        return {"memory": str(self.memory.id), **lists}


def documents_of(
    atlas: Atlas, layer: int, numbers: Sequence[int], tables: Sequence[str] = _TABLES
) -> Iterator[MemoryDocument]:
    """The documents of some memories of a layer, by their numbers, ascending. These `tables` are read of many memories
    together, which takes a twentieth of the time.
    """
    for first in range(0, len(numbers), _TOGETHER):
        some = numbers[first : first + _TOGETHER]
        memories = MemoryRows(atlas, layer, some)
        read = {table: _by_memory(atlas, layer, memories, table) for table in tables}
        for id in (atlas.name(layer, number) for number in some):
            yield MemoryDocument(atlas, id, **{table: of and of(id) for table, of in read.items()})


def _read(atlas: Atlas, memories: MemoryRows, table: str) -> pl.DataFrame | None:
    """The rows of a table, with texts of tokens; None where the atlas does not have it."""
    if table == "triggers":
        return memories.triggers(None)
    if atlas.manifest.part is None or table in _OF_PARTS:
        with suppress(AtlasUnfinished, ModelUnsupported):
            rows: pl.DataFrame = getattr(memories, table)()
            return rows
    return None


def _by_memory(atlas: Atlas, layer: int, memories: MemoryRows, table: str) -> Callable[[MemoryId], list[Row]] | None:
    """The rows of a table for each of the memories; None where the atlas does not have it."""
    if (rows := _read(atlas, memories, table)) is None:
        return None
    names = [name for name in MemoryRows.named_by if name in rows.columns]
    parts = rows.partition_by(names, include_key=table not in _NAMELESS, as_dict=True)
    name_in = atlas.numbering(layer).name_in
    named = {name_in(layer, *(None, *key)[-2:]): part for key, part in parts.items()}
    return lambda id: named[id].to_dicts() if id in named else []
