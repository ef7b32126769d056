"""The searchable fields other than triggers: which memories match, in which order, and the text shown of each.

Annotations are searched in memory, since they change; the other fields are in the index.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.foundation.formatting import pluralise, show_token
from mnemoscope.foundation.options.search_fields import SEARCH_FIELDS
from mnemoscope.search.arrays import read_rows
from mnemoscope.search.database import (
    DEMOTES,
    LABELS,
    PROMOTES,
    MemoryNumbering,
    Ranges,
    lie_within,
    match_rows,
    rows_by_key,
)
from mnemoscope.search.matches import Hit, Matches
from mnemoscope.search.text import Part, Query, find_matches, highlight

PATTERNS, ANNOTATIONS, *_, VALUES, BOTTOM_TOKENS = SEARCH_FIELDS
_SHOWN_TOKENS = 10
_MATCHING_TOKENS = "SELECT rowid FROM token_text WHERE token_text MATCH ?"
_NO_RANK = 1 << 32
"""Larger than any rank."""


@dataclass(frozen=True)
class Values:
    """The first tokens of values, or under the name BOTTOM_TOKENS the last ones."""

    name: str
    database: sqlite3.Connection
    numbering: MemoryNumbering

    def find(self, query: Query, within: Ranges, page: slice) -> Matches:
        top = self.name == VALUES
        column, table, weight = ("top", PROMOTES, "probability") if top else ("bottom", DEMOTES, "score")
        memories = match_rows(self.database, "value_text", column, f"({query.every})")
        memories = memories[lie_within(memories, within)]
        if not len(memories):
            return Matches([], 0, {self.name: 0})
        token_rows = read_rows(self.database, table, _MATCHING_TOKENS, [query.any])
        every = max(int(memories[-1]), int(token_rows["memory"].max(initial=0))) + 1
        score = np.bincount(token_rows["memory"], np.nan_to_num(token_rows[weight]), every)[memories]
        tokens = np.bincount(token_rows["memory"], minlength=every)[memories]
        rank = np.full(every, _NO_RANK, np.int64)
        np.minimum.at(rank, token_rows["memory"], token_rows["rank"].astype(np.int64))
        rank = rank[memories]
        order = np.lexsort((memories, rank, -score))[page]
        rows = list(zip(*(numbers[order].tolist() for numbers in (memories, score, tokens, rank)), strict=True))
        return Matches(self._show(rows, query, column), len(memories), {self.name: len(memories)})

    def _show(self, rows: Sequence[tuple[int, float, int, int]], query: Query, column: str) -> list[Hit]:
        lists = rows_by_key(self.database, "value_tokens", "memory", column, [memory for memory, *_ in rows])
        tokens = {memory: np.frombuffer(shown[0], "<i4").tolist() for memory, shown in lists.items()}
        every = sorted({token for ids in tokens.values() for token in ids})
        texts = rows_by_key(self.database, "vocabulary", "token", "text", every)
        hit = {token for (token,) in self.database.execute(_MATCHING_TOKENS, [query.any])}
        hits: list[Hit] = []
        for memory, score, count, rank in rows:
            kept = [(i, t) for i, t in enumerate(tokens[memory]) if i < _SHOWN_TOKENS or t in hit]
            parts: list[Part] = []
            for at, (place, token) in enumerate(kept):
                if at:
                    parts.append((" " if kept[at - 1][0] == place - 1 else " ... ", False))
                parts.append((show_token(texts[token][0]), token in hit))
            best_rank = None if rank == _NO_RANK else rank
            detail = "no single token" if best_rank is None else f"{column} rank {rank}"
            detail += f", probability {score:.3g}" if self.name == VALUES else ""
            memory_id = self.numbering.id(memory)
            hits.append(Hit(memory_id, self.name, tuple(parts), float(score), count, best_rank, detail, (memory_id,)))
        return hits


def read_patterns(database: sqlite3.Connection) -> NDArray[Any]:
    """By number each pattern's memory, the triggers that it explains, and whether it is a label's."""
    columns = ", ".join(f"group_concat({each})" for each in ("memory", "explained", "kind IN (?, ?)"))
    sql = f"SELECT {columns} FROM (SELECT * FROM patterns ORDER BY pattern)"  # concatenated: half the time of rows
    (joined,) = database.execute(sql, [*LABELS.values()]).fetchall()
    return np.array([np.fromstring(numbers or "", np.int64, sep=",") for numbers in joined])


@dataclass(frozen=True)
class Patterns:
    database: sqlite3.Connection
    numbering: MemoryNumbering
    indexed: NDArray[Any]

    def find(self, query: Query, within: Ranges, page: slice) -> Matches:
        """The memories by the points of their best pattern, and of what their labels say: the triggers explained, half
        of them where the word does not lead the description.
        """
        found = match_rows(self.database, "pattern_text", "description", f"({query.every})")
        found = found[lie_within(self.indexed[0, found], within)]
        leads = np.zeros(self.indexed.shape[1], np.int64)
        leads[match_rows(self.database, "pattern_text", "lead", f"({query.any})")] = 1
        memory, explained, label = self.indexed[:, found]
        points = explained * (1 + leads[found])
        order = np.lexsort((found, -points, label, memory))
        memories, first, matches = np.unique(memory[order], return_index=True, return_counts=True)
        best, added = order[first], np.bincount(memory, points * label, 1 + int(memory.max(initial=0)))[memories]
        points = points[best] * (1 - label[best]) + added
        chosen = np.lexsort((memories, -points))[page]
        some = list(zip(*(each[chosen].tolist() for each in (memories, points / 2, matches, found[best])), strict=True))
        columns = "kind, description, explained"
        patterns = rows_by_key(self.database, "patterns", "pattern", columns, [shown for *_, shown in some])
        ranked = [(*numbers, patterns[shown]) for *numbers, shown in some]
        hits = _show_descriptions(PATTERNS, ranked, query, self.numbering)
        return Matches(hits, len(memories), {PATTERNS: len(memories)})


class Annotations:
    """The patterns that people described, without controls and kind `none`."""

    def __init__(self, judgements: pl.DataFrame | None, numbering: MemoryNumbering) -> None:
        self._numbering = numbering
        self._memories: list[int | None] = []
        self._described: list[tuple[str, str, int]] = []
        if judgements is not None:
            rows = judgements.filter(~pl.col("control") & (pl.col("kind") != "none") & (pl.col("description") != ""))
            self._memories = [numbering.number_of(*key) for key in rows.select("layer", "memory").iter_rows()]
            self._described = rows.select("kind", "description", pl.col("triggers").list.len()).rows()

    def find(self, query: Query, within: Ranges, page: slice) -> Matches:
        by_memory: dict[int, list[int]] = {}
        for number in find_matches([description for _, description, _ in self._described], query):
            memory = self._memories[number]
            if memory is not None and any(low <= memory <= high for low, high in within):
                by_memory.setdefault(memory, []).append(number)
        every = sorted(by_memory.items(), key=lambda item: (-len(item[1]), item[0]))
        ranked = [(memory, len(rows), len(rows), self._described[rows[0]]) for memory, rows in every[page]]
        hits = _show_descriptions(ANNOTATIONS, ranked, query, self._numbering)
        return Matches(hits, len(every), {ANNOTATIONS: len(every)})


def _show_descriptions(
    field: str, ranked: Sequence[tuple[int, float, int, tuple[Any, ...]]], query: Query, numbering: MemoryNumbering
) -> list[Hit]:
    """`ranked` are memory, score, count, and the kind, description and triggers of the one to show."""
    texts = highlight([shown[1] for *_, shown in ranked], query)
    return [
        Hit(
            memory_id := numbering.id(memory),
            field,
            parts,
            float(score),
            count,
            None,
            kind if kind in LABELS.values() else f"{kind}, {pluralise(explained, 'trigger')}",
            (memory_id,),
        )
        for (memory, score, count, (kind, _, explained)), parts in zip(ranked, texts, strict=True)
    ]
