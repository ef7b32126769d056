"""The fields that can be searched: which memories match in each, in which order, and what of them to show.

Annotations, which people change all the time, are in no file of ours; the other fields are in the index.
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
"""Where one can search. `values` are the 20 top tokens of the value, `bottom` its 20 bottom tokens."""
USUAL_FIELDS = ("triggers", "values", "patterns", "annotations")


def check_fields(fields: Sequence[str]) -> None:
    """Raises OptionError for a field that cannot be searched."""
    if unknown := [field for field in fields if field not in FIELDS]:
        raise OptionError(f"field {unknown[0]!r} cannot be searched; choose of {', '.join(FIELDS)}")


_SHOWN_TOKENS = 10
_TOKENS_WITH = "SELECT rowid FROM token_text WHERE token_text MATCH ?"
_NO_RANK = 1 << 32
"""Behind every rank."""


@dataclass(frozen=True)
class Hit:
    """One memory that has the text in one field.

    `score` orders the hits of a field, highest first: different prefixes that match (triggers), the probability that
    the value gives to the tokens that match (values), their summed scores under the negated value (bottom), triggers
    explained by the patterns that match (patterns), judgements that match (annotations).
    `count` is how many prefixes, tokens, patterns or judgements match; `rank` is that of the best trigger or token.
    """

    memory: MemoryId
    field: str
    parts: tuple[Part, ...]
    score: float
    count: int
    rank: int | None
    detail: str
    """What was found, in a few words, such as `12 prefixes, best rank 0`."""


@dataclass(frozen=True)
class MatchingRow:
    """A memory that matches; `best` names the trigger, pattern or judgement to show."""

    memory: int
    score: float
    count: int
    rank: int | None
    best: int


@dataclass(frozen=True)
class FieldRanking:
    """The first rows of a field, how many there are, and whether all triggers were counted."""

    rows: list[MatchingRow]
    total: int
    exact: bool = True


Shown = tuple[tuple[Part, ...], str]
"""The text of a row in pieces, matched or not, and what was found in a few words."""


@dataclass(frozen=True)
class TriggerField:
    """The prefixes of the highest triggers; `raw` are the bytes of every token, `spaced` whether they hold spaces."""

    database: sqlite3.Connection
    words: TriggerWords
    raw: list[bytes]
    spaced: bool

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        """By how many different prefixes match, then by the strongest of them."""
        found = self.words.find(self.database, query, within)
        counts = np.bincount(found.memories)
        best = np.empty(len(counts), np.int64)
        best[found.memories[::-1]] = found.triggers[::-1]  # of a memory's the first, which is written last
        memories = np.flatnonzero(counts)
        total = len(memories)
        # Matches, downwards, and the best trigger in one number: triggers are fewer than 2 ** 32.
        order = np.argsort(-(counts[memories] << 32) + best[memories])[:most]
        memories, triggers = memories[order], best[memories[order]]
        columns = (memories, counts[memories], self.words.rank[triggers], triggers)
        each = zip(*(numbers.tolist() for numbers in columns), strict=True)
        rows = [MatchingRow(memory, count, count, rank, trigger) for memory, count, rank, trigger in each]
        return FieldRanking(rows, total, exact=found.exact)

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        """The end of the best prefix."""
        texts = highlight(self._texts([row.best for row in rows]), query)
        details = [f"{_several(row.count, 'prefix', 'prefixes')}, best rank {row.rank}" for row in rows]
        return list(zip(texts, details, strict=True))

    def _texts(self, triggers: Sequence[int]) -> list[str]:
        """The indexed text of these triggers."""
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
    """The top or bottom tokens of the values."""

    database: sqlite3.Connection
    side: int

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        """By the probability of the tokens that match."""
        where, parameters = condition("rowid", within)
        column, table, weight = ("top", PROMOTES, "probability") if self.side == TOP else ("bottom", DEMOTES, "score")
        matched = self.database.execute(
            f"SELECT rowid FROM value_text WHERE value_text MATCH ? AND {where}",
            [f"{{{column}}} : ({query.every})", *parameters],
        ).fetchall()
        if not matched:
            return FieldRanking([], 0)
        memories = np.array(matched).reshape(-1)
        said = read_rows(self.database, table, _TOKENS_WITH, [query.any])
        every = max(int(memories[-1]), int(said["memory"].max(initial=0))) + 1
        score = np.bincount(said["memory"], np.nan_to_num(said[weight]), every)[memories]
        tokens = np.bincount(said["memory"], minlength=every)[memories]
        rank = np.full(every, _NO_RANK, np.int64)
        np.minimum.at(rank, said["memory"], said["rank"].astype(np.int64))
        rank = rank[memories]
        order = np.lexsort((memories, rank, -score))[:most]
        columns = zip(*(numbers[order].tolist() for numbers in (memories, score, tokens, rank)), strict=True)
        found = [MatchingRow(m, s, count, None if best == _NO_RANK else best, m) for m, s, count, best in columns]
        return FieldRanking(found, len(memories))

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        """The first tokens of each value, and those that match, wherever they stand."""
        column = "top" if self.side == TOP else "bottom"
        lists = _rows_by_key(self.database, "value_tokens", "memory", column, [row.memory for row in rows])
        tokens = {memory: np.frombuffer(found[0], "<i4").tolist() for memory, found in lists.items()}
        every = sorted({token for ids in tokens.values() for token in ids})
        texts = _rows_by_key(self.database, "vocabulary", "token", "text", every)
        hit = {token for (token,) in self.database.execute(_TOKENS_WITH, [query.any])}
        found: list[Shown] = []
        for row in rows:
            kept = [(i, t) for i, t in enumerate(tokens[row.memory]) if i < _SHOWN_TOKENS or t in hit]
            parts: list[Part] = []
            for at, (place, token) in enumerate(kept):
                if at:
                    parts.append((" " if kept[at - 1][0] == place - 1 else " ... ", False))
                parts.append((show_token(texts[token][0]), token in hit))
            best = "no single token" if row.rank is None else f"{column} rank {row.rank}"
            found.append((tuple(parts), f"{best}, probability {row.score:.3g}" if self.side == TOP else best))
        return found


@dataclass(frozen=True)
class Patterns:
    """The descriptions of the automatic patterns."""

    database: sqlite3.Connection

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        """By how many triggers the matching patterns explain."""
        where, parameters = condition("memory", within)
        rows = self.database.execute(
            "WITH found AS MATERIALIZED (SELECT memory, sum(explained) AS explained, count(*) AS matches,"
            "  min(pattern) AS best FROM pattern_text CROSS JOIN patterns ON patterns.pattern = pattern_text.rowid"
            f" WHERE pattern_text MATCH ? AND {where} GROUP BY memory)"
            " SELECT memory, explained, matches, best, (SELECT count(*) FROM found) FROM found"
            " ORDER BY explained DESC, memory LIMIT ?",
            [query.every, *parameters, most],
        ).fetchall()
        found = [MatchingRow(memory, explained, count, None, best) for memory, explained, count, best, _ in rows]
        return FieldRanking(found, rows[0][4] if rows else 0)

    def show(self, rows: Sequence[MatchingRow], query: Query) -> list[Shown]:
        """The description of the first pattern."""
        columns = "kind, description, explained"
        found = _rows_by_key(self.database, "patterns", "pattern", columns, [row.best for row in rows])
        return _show_descriptions([found[row.best] for row in rows], query)


class Annotations:
    """The patterns that people described: those of `judgements`, in the form of `read_judgements`, that count.

    Controls are no memories and judgements of kind `none` describe nothing; both are left out. Authors are not shown.
    """

    def __init__(self, judgements: pl.DataFrame | None, numbering: MemoryNumbering) -> None:
        self._memories: list[int | None] = []
        self._described: list[tuple[str, str, int]] = []
        if judgements is not None:
            rows = judgements.filter(~pl.col("control") & (pl.col("kind") != "none") & (pl.col("description") != ""))
            self._memories = [numbering.number_of(*key) for key in rows.select("layer", "memory").iter_rows()]
            self._described = rows.select("kind", "description", pl.col("triggers").list.len()).rows()

    def rank(self, query: Query, within: Ranges, *, most: int) -> FieldRanking:
        """By how many judgements match."""
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
        """The description of the first judgement."""
        return _show_descriptions([self._described[row.best] for row in rows], query)


Field = TriggerField | Values | Patterns | Annotations
"""One field of an index: `rank` gives the first `most` memories that match, best first, `show` what to show of each."""


def _show_descriptions(described: Sequence[tuple[Any, ...]], query: Query) -> list[Shown]:
    """What to show of patterns: kind, description, and how many triggers they explain."""
    texts = highlight([description for _, description, _ in described], query)
    details = [f"{kind}, {_several(explained, 'trigger', 'triggers')}" for kind, _, explained in described]
    return list(zip(texts, details, strict=True))


def _several(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _rows_by_key(
    database: sqlite3.Connection, table: str, key: str, columns: str, keys: Sequence[int]
) -> dict[int, tuple[Any, ...]]:
    """Rows of a table of ours by their key."""
    sql = f"SELECT {key}, {columns} FROM {table} WHERE {key} IN (SELECT value FROM json_each(?))"
    return {row[0]: row[1:] for row in database.execute(sql, (json.dumps(list(keys)),))}
