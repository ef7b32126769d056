"""One field asked and shown: which memories match, in which order, and what of them to show.

Triggers: by how many different prefixes match, then by the strongest of them. Values: by the probability of the tokens
that match. Patterns: by how many triggers the matching ones explain. Annotations: by how many judgements match.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnemoscope.atlas.visible import in_token
from mnemoscope.memory import MemoryId
from mnemoscope.search.answers import Hit, Part
from mnemoscope.search.judgements import Judged
from mnemoscope.search.layout import BOTTOM, CONTEXT, MEMORY_MASK, MOST_ROWS, RANK_BITS, TOP, token_type
from mnemoscope.search.marking import marked, matching
from mnemoscope.search.places import Ranges, condition
from mnemoscope.search.prefixes import window_text
from mnemoscope.search.text import Query

if TYPE_CHECKING:
    from mnemoscope.search.index import Index

_SHOWN_TOKENS = 10


@dataclass(frozen=True)
class Row:
    """A memory that matches; `best` names the trigger, pattern or judgement to show."""

    memory: int
    score: float
    count: int
    rank: int | None
    best: int


@dataclass(frozen=True)
class Found:
    """The first rows of a field, how many there are, and whether all triggers were counted."""

    rows: list[Row]
    total: int
    exact: bool = True


def field_hits(
    database: sqlite3.Connection,
    index: "Index",
    field: str,
    query: Query,
    within: Ranges,
    most: int,
    judged: Sequence[Judged] | None,
) -> Found:
    """The first `most` memories of a field, best first."""
    if field == "triggers":
        return _triggers(database, query, within, most)
    if field == "values":
        return _values(database, query, within, most, TOP)
    if field == "bottom":
        return _values(database, query, within, most, BOTTOM)
    if field == "patterns":
        return _patterns(database, query, within, most)
    return _annotations(index, query, within, most, judged or ())


def _triggers(database: sqlite3.Connection, query: Query, within: Ranges, most: int) -> Found:
    memory = f"(rowid & {MEMORY_MASK})"
    where, parameters = condition(memory, within)
    rows = database.execute(
        f"WITH found AS MATERIALIZED (SELECT {memory} AS memory, count(*) AS matches, min(rowid) AS best FROM"
        f" (SELECT rowid FROM trigger_text WHERE trigger_text MATCH ? AND {where} LIMIT {MOST_ROWS}) GROUP BY 1)"
        " SELECT memory, matches, best, (SELECT count(*) FROM found), (SELECT sum(matches) FROM found) FROM found"
        " ORDER BY matches DESC, best LIMIT ?",
        [query.every, *parameters, most],
    ).fetchall()
    total, counted = (rows[0][3], rows[0][4]) if rows else (0, 0)
    found = [Row(memory, matches, matches, best >> RANK_BITS, best) for memory, matches, best, _, _ in rows]
    return Found(found, total, exact=counted < MOST_ROWS)


def _values(database: sqlite3.Connection, query: Query, within: Ranges, most: int, side: int) -> Found:
    where, parameters = condition("rowid", within)
    column, weight = ("top", "probability") if side == TOP else ("bottom", "score")
    rows = database.execute(
        "WITH matched AS MATERIALIZED (SELECT rowid AS memory FROM value_text WHERE value_text MATCH ?"
        f"  AND {where}),"
        f" said AS MATERIALIZED (SELECT memory, sum({weight}) AS score, count(*) AS tokens, min(rank) AS rank FROM says"
        "  WHERE side = ? AND token IN (SELECT rowid FROM token_text WHERE token_text MATCH ?) GROUP BY memory)"
        " SELECT memory, coalesce(score, 0.0), coalesce(tokens, 0), rank, (SELECT count(*) FROM matched)"
        " FROM matched LEFT JOIN said USING (memory)"
        " ORDER BY 2 DESC, rank IS NULL, rank, memory LIMIT ?",
        [f"{{{column}}} : ({query.every})", *parameters, side, query.any, most],
    ).fetchall()
    found = [Row(memory, score, tokens, rank, memory) for memory, score, tokens, rank, _ in rows]
    return Found(found, rows[0][4] if rows else 0)


def _patterns(database: sqlite3.Connection, query: Query, within: Ranges, most: int) -> Found:
    where, parameters = condition("memory", within)
    rows = database.execute(
        "WITH found AS MATERIALIZED (SELECT memory, sum(explained) AS explained, count(*) AS matches,"
        "  min(pattern) AS best FROM pattern_text CROSS JOIN patterns ON patterns.pattern = pattern_text.rowid"
        f" WHERE pattern_text MATCH ? AND {where} GROUP BY memory)"
        " SELECT memory, explained, matches, best, (SELECT count(*) FROM found) FROM found"
        " ORDER BY explained DESC, memory LIMIT ?",
        [query.every, *parameters, most],
    ).fetchall()
    found = [Row(memory, explained, count, None, best) for memory, explained, count, best, _ in rows]
    return Found(found, rows[0][4] if rows else 0)


def _annotations(index: "Index", query: Query, within: Ranges, most: int, judged: Sequence[Judged]) -> Found:
    by_memory: dict[int, list[int]] = {}
    for number in matching([one.description for one in judged], query):
        memory = index.places.number(MemoryId(judged[number].layer, judged[number].memory))
        if memory is not None and any(low <= memory <= high for low, high in within):
            by_memory.setdefault(memory, []).append(number)
    rows = [Row(memory, len(numbers), len(numbers), None, numbers[0]) for memory, numbers in by_memory.items()]
    return Found(sorted(rows, key=lambda row: (-row.score, row.memory))[:most], len(rows))


def shown(
    database: sqlite3.Connection,
    index: "Index",
    field: str,
    rows: Sequence[Row],
    query: Query,
    judged: Sequence[Judged] | None,
) -> list[Hit]:
    """The rows as hits, each with the text that matched."""
    if not rows:
        return []
    if field in ("values", "bottom"):
        texts, details = _value_parts(database, rows, query, BOTTOM if field == "bottom" else TOP)
    elif field == "triggers":
        texts = marked(_prefixes(database, index, [row.best for row in rows]), query)
        details = [f"{_several(row.count, 'prefix', 'prefixes')}, best rank {row.rank}" for row in rows]
    else:
        if field == "patterns":
            found = _by_key(database, "patterns", "pattern", "kind, description, explained", [row.best for row in rows])
        else:
            known = judged or ()
            found = {row.best: _told(known[row.best]) for row in rows}
        texts = marked([found[row.best][1] for row in rows], query)
        details = [f"{found[row.best][0]}, {_several(found[row.best][2], 'trigger', 'triggers')}" for row in rows]
    return [
        Hit(index.places.id(row.memory), field, text, float(row.score), row.count, row.rank, detail)
        for row, text, detail in zip(rows, texts, details, strict=True)
    ]


def _told(one: Judged) -> tuple[str, str, int]:
    return one.kind, one.description, one.triggers


def _several(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _by_key(
    database: sqlite3.Connection, table: str, key: str, columns: str, keys: Sequence[int]
) -> dict[int, tuple[Any, ...]]:
    """Rows of a table of ours by their key."""
    found: dict[int, tuple[Any, ...]] = {}
    for at in range(0, len(keys), 500):
        some = keys[at : at + 500]
        sql = f"SELECT {key}, {columns} FROM {table} WHERE {key} IN ({', '.join('?' * len(some))})"
        found |= {row[0]: row[1:] for row in database.execute(sql, list(some))}
    return found


def _prefixes(database: sqlite3.Connection, index: "Index", triggers: Sequence[int]) -> list[str]:
    """The indexed text of these triggers."""
    places = _by_key(database, "prefixes", "trigger", "sentence, position", triggers)
    stored = _by_key(database, "sentences", "sentence", "tokens", sorted({place[0] for place in places.values()}))
    raw = index.raw()
    kind = token_type(len(raw))
    texts = []
    for trigger in triggers:
        sentence, position = places[trigger]
        begin = max(0, position - (CONTEXT - 1))
        tokens = np.frombuffer(stored[sentence][0], kind)[begin : position + 1].tolist()
        texts.append(window_text(tokens, raw, spaced=index.places.spaced, cut=begin > 0))
    return texts


def _value_parts(
    database: sqlite3.Connection, rows: Sequence[Row], query: Query, side: int
) -> tuple[list[tuple[Part, ...]], list[str]]:
    """The first tokens of each value as shown, and those that match, wherever they stand."""
    column = "top" if side == TOP else "bottom"
    lists = _by_key(database, "value_tokens", "memory", column, [row.memory for row in rows])
    tokens = {memory: np.frombuffer(found[0], "<i4").tolist() for memory, found in lists.items()}
    every = sorted({token for ids in tokens.values() for token in ids})
    texts = _by_key(database, "vocabulary", "token", "text", every)
    hit = {token for token, parts in zip(every, marked([texts[t][0] for t in every], query), strict=True)
           if any(matched for _, matched in parts)}  # fmt: skip
    pieces, details = [], []
    for row in rows:
        kept = [(i, t) for i, t in enumerate(tokens[row.memory]) if i < _SHOWN_TOKENS or t in hit]
        parts: list[Part] = []
        for at, (place, token) in enumerate(kept):
            if at:
                parts.append((" " if kept[at - 1][0] == place - 1 else " ... ", False))
            parts.append((in_token(texts[token][0]), token in hit))
        pieces.append(tuple(parts))
        best = "no single token" if row.rank is None else f"{column} rank {row.rank}"
        details.append(f"{best}, probability {row.score:.3g}" if side == TOP else best)
    return pieces, details
