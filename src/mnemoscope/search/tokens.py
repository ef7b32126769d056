"""Finds tokens by text or id, and the memories that promote them, demote them, or fire on them."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.errors import OptionError, SearchError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.search.arrays import read_rows
from mnemoscope.search.database import DEMOTES, FIRES, PROMOTES, MemoryNumbering, Ranges, lie_within
from mnemoscope.search.text import MOST_CHARACTERS, fold_token

TOKEN_ROLES = (PROMOTES, DEMOTES, FIRES)
_COLUMNS = "token, text, shown, count"
_LIKE = f"""
SELECT {_COLUMNS} FROM vocabulary WHERE text != ''
  AND (text = :text OR instr(shown, :text) OR (:folded != '' AND instr(folded, :folded)))
ORDER BY text != :text AND shown != :text, folded != :folded,
  instr(shown, :text) != 1 AND instr(folded, :folded) != 1, count DESC, token
LIMIT :limit
"""


@dataclass(frozen=True)
class VocabularyToken:
    """`text` is as in running text, `shown` with visible white space (`·Paris`)."""

    id: int
    text: str
    shown: str
    count: int
    """Occurrences in the distinct mined sentences."""


@dataclass(frozen=True)
class Promotion:
    """A memory with the token among the 20 top (or bottom) tokens of its value."""

    memory: MemoryId
    token: int
    rank: int
    probability: float | None
    """None for bottom tokens."""
    score: float
    """For bottom tokens that of the negated value."""


@dataclass(frozen=True)
class Firing:
    memory: MemoryId
    triggers: int
    """The number of its highest triggers that end in the token."""
    rank: int
    """The best one's."""


def like(database: sqlite3.Connection, text: str, *, limit: int) -> tuple[VocabularyToken, ...]:
    text = _check_text(text)
    return _read(database, _LIKE, {"text": text, "folded": fold_token(text), "limit": limit})


def exactly(database: sqlite3.Connection, token: str | int) -> tuple[VocabularyToken, ...]:
    """The tokens with this text (plain or as shown), or with this id; for a text that none has, the `near` one."""
    if isinstance(token, int):
        sql = f"SELECT {_COLUMNS} FROM vocabulary WHERE token = ?"
        if not 0 <= token < 1 << 31 or not (tokens := _read(database, sql, (token,))):
            last = database.execute("SELECT max(token) FROM vocabulary").fetchone()[0]
            raise SearchError(f"token {token} is not in the vocabulary; it has tokens 0-{last}")
        return tokens
    text = _check_text(token)
    if tokens := _find(database, "text", text) or _find(database, "shown", text) or near(database, text):
        return tokens
    others = ", ".join(repr(other.shown) for other in like(database, text, limit=5))
    raise SearchError(f"no token reads {token!r}" + (f"; there are {others}" if others else " or holds it"))


def near(database: sqlite3.Connection, text: str) -> tuple[VocabularyToken, ...]:
    """The only other token that differs from this text in outer spaces, or else in case; usually none."""
    bare = text.strip()
    for column, value in (("trim(text)", bare), ("folded", fold_token(bare))) if bare else ():
        if len(others := [token for token in _find(database, column, value) if token.text != text]) == 1:
            return tuple(others)
    return ()


def _find(database: sqlite3.Connection, column: str, value: str) -> tuple[VocabularyToken, ...]:
    sql = f"SELECT {_COLUMNS} FROM vocabulary WHERE text != '' AND {column} = ? ORDER BY count DESC, token"
    return _read(database, sql, (value,))


def _read(database: sqlite3.Connection, sql: str, parameters: Any) -> tuple[VocabularyToken, ...]:
    return tuple(VocabularyToken(*row) for row in database.execute(sql, parameters))


def _check_text(text: str) -> str:
    if not text:
        raise SearchError("an empty text names no token; type one as it reads, such as '·Paris'")
    if len(text) > MOST_CHARACTERS:
        raise SearchError(f"the token's text has {len(text):,} characters; at most {MOST_CHARACTERS:,} can be searched")
    return text.encode("utf-8", "replace").decode()


def find_memories(
    database: sqlite3.Connection,
    numbering: MemoryNumbering,
    token: str | int,
    kind: str,
    within: Ranges,
    page: tuple[int, int],
) -> tuple[Any, ...]:
    """Promotions or Firings; `page` is (limit, offset)."""
    rows, token_of = _rows(database, token, kind, within)
    limit, offset = page
    part = slice(offset, offset + limit)
    if kind == FIRES:
        # Of a memory's rows of several tokens the sum of triggers and the best rank.
        memories, index = np.unique(rows["memory"], return_inverse=True)
        joined = np.empty(len(memories), [("memory", "<i8"), ("triggers", "<i8"), ("rank", "<i8")])
        joined["memory"], joined["rank"] = memories, np.iinfo(np.int64).max
        joined["triggers"] = np.bincount(index, rows["triggers"], len(memories))
        np.minimum.at(joined["rank"], index, rows["rank"].astype(np.int64))
        fires = joined[np.lexsort(sort_keys(FIRES, joined))][part].tolist()
        return tuple(Firing(numbering.id(memory), triggers, rank) for memory, triggers, rank in fires)
    order = np.lexsort((token_of, *sort_keys(kind, rows)))[part]
    columns = ["memory", "rank", "probability", "score"] if kind == PROMOTES else ["memory", "rank", "score"]
    return tuple(
        Promotion(numbering.id(memory), token, rank, None if not rest[:-1] or isnan(rest[0]) else rest[0], rest[-1])
        for (memory, rank, *rest), token in zip(rows[order][columns].tolist(), token_of[order].tolist(), strict=True)
    )


def count(database: sqlite3.Connection, token: str | int, kind: str, within: Ranges) -> int:
    if kind not in TOKEN_ROLES:
        raise OptionError(f"{kind!r} cannot be counted; choose from {', '.join(TOKEN_ROLES)}")
    return len(np.unique(_rows(database, token, kind, within)[0]["memory"]))


def _rows(
    database: sqlite3.Connection, token: str | int, kind: str, within: Ranges
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows of the token, and the id of each row."""
    tokens = sorted(match.id for match in exactly(database, token))
    pieces = [read_rows(database, kind, "?", [each]) for each in tokens]
    rows, token_of = np.concatenate(pieces), np.repeat(tokens, list(map(len, pieces)))
    kept = lie_within(rows["memory"], within)
    return rows[kept], token_of[kept]


def sort_keys(kind: str, rows: Mapping[str, NDArray[Any]] | NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Keys for `lexsort`, of which the last is the primary one; unknown probabilities come last."""
    if kind == FIRES:
        return rows["memory"], rows["rank"], -rows["triggers"].astype(np.int64)
    if kind == PROMOTES:
        probability = rows["probability"]
        return rows["memory"], rows["rank"], np.where(np.isnan(probability), np.inf, -probability)
    return rows["memory"], -rows["score"], rows["rank"]
