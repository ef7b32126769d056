"""Finds tokens by their text, and the memories that promote them, oppose them, or fire on them."""

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
from mnemoscope.search.database import DEMOTES, EVERYWHERE, FIRES, PROMOTES, MemoryNumbering, Ranges, lie_within
from mnemoscope.search.text import MOST_CHARACTERS

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
    """A token of the vocabulary: `text` as in running text, `shown` with its white space visible (`·Paris`)."""

    id: int
    text: str
    shown: str
    count: int
    """Occurrences in the distinct mined sentences."""


@dataclass(frozen=True)
class Promotion:
    """A memory whose value has the token among its 20 top (or bottom) tokens."""

    memory: MemoryId
    token: int
    rank: int
    probability: float | None
    """Under the softmax of the value's scores; None for bottom tokens."""
    score: float
    """Under the value; for bottom tokens under the negated value."""


@dataclass(frozen=True)
class Firing:
    """A memory that fires on a token: the number of its highest triggers that end in it, and the best one's rank."""

    memory: MemoryId
    triggers: int
    rank: int


def like(database: sqlite3.Connection, text: str, *, limit: int) -> tuple[VocabularyToken, ...]:
    text = _check_text(text)
    rows = database.execute(_LIKE, {"text": text, "folded": text.strip().casefold(), "limit": limit})
    return tuple(VocabularyToken(*row) for row in rows)


def exactly(database: sqlite3.Connection, token: str | int) -> tuple[VocabularyToken, ...]:
    """The tokens of this text, plain or as shown, or the one with this id. Raises SearchError."""
    if isinstance(token, int):
        own = f"SELECT {_COLUMNS} FROM vocabulary WHERE token = ?"
        if not 0 <= token < 1 << 31 or not (found := database.execute(own, (token,)).fetchall()):
            last = database.execute("SELECT max(token) FROM vocabulary").fetchone()[0]
            raise SearchError(f"token {token} is not in the vocabulary; it has tokens 0-{last}")
        return (VocabularyToken(*found[0]),)
    text = _check_text(token)
    for column in ("text", "shown"):
        found = database.execute(
            f"SELECT {_COLUMNS} FROM vocabulary WHERE text != '' AND {column} = ? ORDER BY count DESC, token", (text,)
        ).fetchall()
        if found:
            return tuple(VocabularyToken(*row) for row in found)
    near = ", ".join(repr(found.shown) for found in like(database, text, limit=5))
    raise SearchError(f"no token reads {token!r}" + (f"; there are {near}" if near else " or holds it"))


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
    """One page (limit, offset) of the memories that promote, oppose (`demotes`) or fire on (`fires`) the token."""
    rows = _rows(database, token, kind, within)
    limit, offset = page
    shown, several = slice(offset, offset + limit), len(rows.tokens) > 1
    if kind == FIRES:
        fires = (_join(rows) if several else rows.found)[shown][["memory", "triggers", "rank"]].tolist()
        return tuple(Firing(numbering.id(memory), triggers, rank) for memory, triggers, rank in fires)
    order = np.lexsort((rows.token_of, *sort_keys(kind, rows.found))) if several else np.arange(len(rows.found))
    order = order[shown]
    columns = ["memory", "rank", "probability", "score"] if kind == PROMOTES else ["memory", "rank", "score"]
    return tuple(
        Promotion(numbering.id(memory), token, rank, None if not said[:-1] or isnan(said[0]) else said[0], said[-1])
        for (memory, rank, *said), token in zip(
            rows.found[order][columns].tolist(), rows.token_of[order].tolist(), strict=True
        )
    )


def count(database: sqlite3.Connection, token: str | int, kind: str, within: Ranges) -> int:
    if kind not in TOKEN_ROLES:
        raise OptionError(f"{kind!r} cannot be counted; choose from {', '.join(TOKEN_ROLES)}")
    return len(np.unique(_rows(database, token, kind, within).found["memory"]))


@dataclass(frozen=True)
class _TokenRows:
    tokens: list[int]
    found: NDArray[Any]
    token_of: NDArray[Any]


def _rows(database: sqlite3.Connection, token: str | int, kind: str, within: Ranges) -> _TokenRows:
    tokens = sorted(found.id for found in exactly(database, token))
    pieces = [read_rows(database, kind, "?", [own]) for own in tokens]
    found, token_of = np.concatenate(pieces), np.repeat(tokens, list(map(len, pieces)))
    kept = slice(None) if within == EVERYWHERE else lie_within(found["memory"], within)
    return _TokenRows(tokens, found[kept], token_of[kept])


def _join(rows: _TokenRows) -> NDArray[Any]:
    """Joins a memory's rows of several tokens: all triggers, the best rank."""
    memories, own = np.unique(rows.found["memory"], return_inverse=True)
    joined = np.empty(len(memories), [("memory", "<i8"), ("triggers", "<i8"), ("rank", "<i8")])
    joined["memory"], joined["rank"] = memories, np.iinfo(np.int64).max
    joined["triggers"] = np.bincount(own, rows.found["triggers"], len(memories))
    np.minimum.at(joined["rank"], own, rows.found["rank"].astype(np.int64))
    return joined[np.lexsort(sort_keys(FIRES, joined))]


def sort_keys(kind: str, rows: Mapping[str, NDArray[Any]] | NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Sort keys for `lexsort` (the last is primary); unknown probabilities come last."""
    if kind == FIRES:
        return rows["memory"], rows["rank"], -rows["triggers"].astype(np.int64)
    if kind == PROMOTES:
        probability = rows["probability"]
        return rows["memory"], rows["rank"], np.where(np.isnan(probability), np.inf, -probability)
    return rows["memory"], -rows["score"], rows["rank"]
