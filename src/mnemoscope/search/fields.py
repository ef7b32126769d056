"""The searchable fields: which memories match, in which order, and the text shown of each.

Annotations are searched in memory, since they change; the other fields are in the index.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.errors import OptionError
from mnemoscope.foundation.formatting import show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.search.arrays import read_rows
from mnemoscope.search.database import (
    CONTEXT,
    DEMOTES,
    PROMOTES,
    TOP,
    MemoryNumbering,
    Ranges,
    condition,
    token_type,
    window_text,
)
from mnemoscope.search.text import Part, Query, find_matches, highlight
from mnemoscope.search.trigger_words import TriggerWords

FIELDS = ("triggers", "values", "patterns", "annotations", "bottom")
"""`values` are the 20 top tokens of the value, `bottom` its 20 bottom tokens."""
USUAL_FIELDS = ("triggers", "values", "patterns", "annotations")


def check_fields(fields: Sequence[str]) -> None:
    if unknown := [field for field in fields if field not in FIELDS]:
        raise OptionError(f"field {unknown[0]!r} cannot be searched; choose from {', '.join(FIELDS)}")


_SHOWN_TOKENS = 10
_MATCHING_TOKENS = "SELECT rowid FROM token_text WHERE token_text MATCH ?"
_NO_RANK = 1 << 32
"""Larger than any rank."""


@dataclass(frozen=True)
class Hit:
    """A memory whose field matches.

    `score` orders the hits of a field: the number of distinct matching prefixes (triggers), the summed probability of
    the matching tokens (values), their summed scores under the negated value (bottom), the number of triggers that the
    matching patterns explain (patterns), the number of matching judgements (annotations). `count` is the number of
    matching prefixes, tokens, patterns or judgements; `rank` is that of the best trigger or token.
    """

    memory: MemoryId
    field: str
    parts: tuple[Part, ...]
    score: float
    count: int
    rank: int | None
    detail: str
    """A short description of the match, such as `12 prefixes, best rank 0`."""


@dataclass(frozen=True)
class MatchingRow:
    """`best` is the number of the trigger, pattern or judgement to show."""

    memory: int
    score: float
    count: int
    rank: int | None
    best: int


@dataclass(frozen=True)
class FieldRanking:
    """The first rows, the number of all, and whether all triggers were counted."""

    rows: list[MatchingRow]
    total: int
    exact: bool = True


Shown = tuple[tuple[Part, ...], str]
"""The text of a row in pieces, and a short description."""


@dataclass(frozen=True)
class TriggerField:
    """`raw` are the bytes of every token; `spaced`: they include spaces."""

    database: sqlite3.Connection
    words: TriggerWords
    raw: list[bytes]
    spaced: bool

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        """By the number of distinct matching prefixes, then by the best trigger."""
        matches = self.words.find(self.database, query, within)
        counts = np.bincount(matches.memories)
        best = np.empty(len(counts), np.int64)
        best[matches.memories[::-1]] = matches.triggers[::-1]  # each memory's first trigger is written last
        memories = np.flatnonzero(counts)
        total = len(memories)
        # One sort key for the descending count and the best trigger, since there are fewer than 2 ** 32 triggers.
        order = np.argsort(-(counts[memories] << 32) + best[memories])[:most]
        memories, triggers = memories[order], best[memories[order]]
        columns = (memories, counts[memories], self.words.rank[triggers], triggers)
        each = zip(*(numbers.tolist() for numbers in columns), strict=True)
        rows = [MatchingRow(memory, count, count, rank, trigger) for memory, count, rank, trigger in each]
        return FieldRanking(rows, total, exact=matches.exact)

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        texts = highlight(self._texts([row.best for row in rows]), query)
        details = [f"{_plural(row.count, 'prefix', 'prefixes')}, best rank {row.rank}" for row in rows]
        return list(zip(texts, details, strict=True))

    def _texts(self, triggers: Sequence[int]) -> list[str]:
        places = [(int(self.words.sentence[one]), int(self.words.position[one])) for one in triggers]
        sentences = sorted({sentence for sentence, _ in places})
        stored = _rows_by_key(self.database, "sentences", "sentence", "first, tokens", sentences)
        texts = []
        for sentence, position in places:
            begin = max(0, position - (CONTEXT - 1))
            first, data = stored[sentence]
            tokens = np.frombuffer(data, token_type(len(self.raw)))[begin - first : position + 1 - first].tolist()
            texts.append(window_text(tokens, self.raw, spaced=self.spaced, cut=begin > 0))
        return texts


@dataclass(frozen=True)
class Values:
    database: sqlite3.Connection
    side: int

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        where, parameters = condition("rowid", within)
        column, table, weight = ("top", PROMOTES, "probability") if self.side == TOP else ("bottom", DEMOTES, "score")
        matched = self.database.execute(
            f"SELECT rowid FROM value_text WHERE value_text MATCH ? AND {where}",
            [f"{{{column}}} : ({query.every})", *parameters],
        ).fetchall()
        if not matched:
            return FieldRanking([], 0)
        memories = np.array(matched).reshape(-1)
        token_rows = read_rows(self.database, table, _MATCHING_TOKENS, [query.any])
        every = max(int(memories[-1]), int(token_rows["memory"].max(initial=0))) + 1
        score = np.bincount(token_rows["memory"], np.nan_to_num(token_rows[weight]), every)[memories]
        tokens = np.bincount(token_rows["memory"], minlength=every)[memories]
        rank = np.full(every, _NO_RANK, np.int64)
        np.minimum.at(rank, token_rows["memory"], token_rows["rank"].astype(np.int64))
        rank = rank[memories]
        order = np.lexsort((memories, rank, -score))[:most]
        columns = zip(*(numbers[order].tolist() for numbers in (memories, score, tokens, rank)), strict=True)
        ranked = [MatchingRow(m, s, count, None if best == _NO_RANK else best, m) for m, s, count, best in columns]
        return FieldRanking(ranked, len(memories))

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        column = "top" if self.side == TOP else "bottom"
        lists = _rows_by_key(self.database, "value_tokens", "memory", column, [row.memory for row in rows])
        tokens = {memory: np.frombuffer(shown[0], "<i4").tolist() for memory, shown in lists.items()}
        every = sorted({token for ids in tokens.values() for token in ids})
        texts = _rows_by_key(self.database, "vocabulary", "token", "text", every)
        hit = {token for (token,) in self.database.execute(_MATCHING_TOKENS, [query.any])}
        shown: list[Shown] = []
        for row in rows:
            kept = [(i, t) for i, t in enumerate(tokens[row.memory]) if i < _SHOWN_TOKENS or t in hit]
            parts: list[Part] = []
            for at, (place, token) in enumerate(kept):
                if at:
                    parts.append((" " if kept[at - 1][0] == place - 1 else " ... ", False))
                parts.append((show_token(texts[token][0]), token in hit))
            best = "no single token" if row.rank is None else f"{column} rank {row.rank}"
            shown.append((tuple(parts), f"{best}, probability {row.score:.3g}" if self.side == TOP else best))
        return shown


@dataclass(frozen=True)
class Patterns:
    database: sqlite3.Connection

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        where, parameters = condition("memory", within)
        rows = self.database.execute(
            "WITH found AS MATERIALIZED (SELECT memory, sum(explained) AS explained, count(*) AS matches,"
            "  min(pattern) AS best FROM pattern_text CROSS JOIN patterns ON patterns.pattern = pattern_text.rowid"
            f" WHERE pattern_text MATCH ? AND {where} GROUP BY memory)"
            " SELECT memory, explained, matches, best, (SELECT count(*) FROM found) FROM found"
            " ORDER BY explained DESC, memory LIMIT ?",
            [query.every, *parameters, most],
        ).fetchall()
        ranked = [MatchingRow(memory, explained, count, None, best) for memory, explained, count, best, _ in rows]
        return FieldRanking(ranked, rows[0][4] if rows else 0)

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        columns = "kind, description, explained"
        patterns = _rows_by_key(self.database, "patterns", "pattern", columns, [row.best for row in rows])
        return _show_descriptions([patterns[row.best] for row in rows], query)


class Annotations:
    """The patterns that people described, without controls and kind `none`."""

    def __init__(self, judgements: pl.DataFrame | None, numbering: MemoryNumbering) -> None:
        self._memories: list[int | None] = []
        self._described: list[tuple[str, str, int]] = []
        if judgements is not None:
            rows = judgements.filter(~pl.col("control") & (pl.col("kind") != "none") & (pl.col("description") != ""))
            self._memories = [numbering.number_of(*key) for key in rows.select("layer", "memory").iter_rows()]
            self._described = rows.select("kind", "description", pl.col("triggers").list.len()).rows()

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        by_memory: dict[int, list[int]] = {}
        for number in find_matches([description for _, description, _ in self._described], query):
            memory = self._memories[number]
            if memory is not None and any(low <= memory <= high for low, high in within):
                by_memory.setdefault(memory, []).append(number)
        rows = [
            MatchingRow(memory, len(numbers), len(numbers), None, numbers[0]) for memory, numbers in by_memory.items()
        ]
        return FieldRanking(sorted(rows, key=lambda row: (-row.score, row.memory))[:most], len(rows))

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        return _show_descriptions([self._described[row.best] for row in rows], query)


Field = TriggerField | Values | Patterns | Annotations
"""`rank` returns the best `most` matching memories; `show` their texts."""


def _show_descriptions(described: Sequence[tuple[Any, ...]], query: Query) -> list[Shown]:
    texts = highlight([description for _, description, _ in described], query)
    details = [f"{kind}, {_plural(explained, 'trigger', 'triggers')}" for kind, _, explained in described]
    return list(zip(texts, details, strict=True))


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _rows_by_key(
    database: sqlite3.Connection, table: str, key: str, columns: str, keys: Sequence[int]
) -> dict[int, tuple[Any, ...]]:
    sql = f"SELECT {key}, {columns} FROM {table} WHERE {key} IN (SELECT value FROM json_each(?))"
    return {row[0]: row[1:] for row in database.execute(sql, (json.dumps(list(keys)),))}
