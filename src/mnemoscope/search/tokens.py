"""Tokens by how they read, and the memories that promote them, oppose them, or fire on them."""

import sqlite3
from dataclasses import dataclass
from typing import Any

from mnemoscope.errors import OptionError, SearchError
from mnemoscope.memory import MemoryId
from mnemoscope.search.database import BOTTOM, TOP, MemoryNumbering, Ranges, condition
from mnemoscope.search.text import MOST_CHARACTERS

_COLUMNS = "token, text, shown, count"
_LIKE = f"""
SELECT {_COLUMNS} FROM vocabulary WHERE text != ''
  AND (text = :text OR instr(shown, :text) OR (:folded != '' AND instr(folded, :folded)))
ORDER BY text != :text AND shown != :text, folded != :folded,
  instr(shown, :text) != 1 AND instr(folded, :folded) != 1, count DESC, token
LIMIT :limit
"""


@dataclass(frozen=True)
class Token:
    """A token of the vocabulary: `text` as in running text, `shown` with its white space visible (`·Paris`)."""

    id: int
    text: str
    shown: str
    count: int
    """How often it occurs in the distinct mined sentences."""


@dataclass(frozen=True)
class Promotion:
    """A memory whose value has the token among its 20 top (or bottom) tokens."""

    memory: MemoryId
    token: int
    rank: int
    probability: float | None
    """Of the token under the softmax of the value's scores; None among the bottom tokens."""
    score: float
    """Of the token under the value; among the bottom tokens under the negated value."""


@dataclass(frozen=True)
class Firing:
    """A memory whose key fires on a token: how many of its highest triggers end in it, and the best one's rank."""

    memory: MemoryId
    triggers: int
    rank: int


_SAYS = "memory, token, rank, probability, score"
_KINDS: dict[str, tuple[str, str, str, type[Promotion | Firing]]] = {
    "promotes": (
        _SAYS, f"says WHERE side = {TOP}", "ORDER BY probability DESC, rank, memory, token", Promotion
    ),
    "demotes": (
        _SAYS, f"says WHERE side = {BOTTOM}", "ORDER BY rank, score DESC, memory, token", Promotion
    ),
    "fires": (
        "memory, sum(triggers), min(rank)", "fires WHERE 1", "GROUP BY memory ORDER BY 2 DESC, 3, memory", Firing
    ),
}  # fmt: skip
"""What a memory can have to do with a token: columns, rows and order in SQL, and what a row becomes."""


def like(database: sqlite3.Connection, text: str, *, limit: int) -> tuple[Token, ...]:
    """The tokens that read like `text`, the same text first."""
    text = _check_text(text)
    rows = database.execute(_LIKE, {"text": text, "folded": text.strip().casefold(), "limit": limit})
    return tuple(Token(*row) for row in rows)


def exactly(database: sqlite3.Connection, token: str | int) -> tuple[Token, ...]:
    """The tokens of this text, written plainly or as shown, or the one of this id; raises SearchError."""
    if isinstance(token, int):
        own = f"SELECT {_COLUMNS} FROM vocabulary WHERE token = ?"
        if not 0 <= token < 1 << 31 or not (found := database.execute(own, (token,)).fetchall()):
            last = database.execute("SELECT max(token) FROM vocabulary").fetchone()[0]
            raise SearchError(f"token {token} is not in the vocabulary; it has tokens 0-{last}")
        return (Token(*found[0]),)
    text = _check_text(token)
    for column in ("text", "shown"):
        found = database.execute(
            f"SELECT {_COLUMNS} FROM vocabulary WHERE text != '' AND {column} = ? ORDER BY count DESC, token", (text,)
        ).fetchall()
        if found:
            return tuple(Token(*row) for row in found)
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
    columns, rows, order, made = _KINDS[kind]
    where, parameters = _condition(database, token, within)
    found = database.execute(f"SELECT {columns} FROM {rows} AND {where} {order} LIMIT ? OFFSET ?", [*parameters, *page])
    return tuple(made(numbering.id(memory), *rest) for memory, *rest in found)


def count(database: sqlite3.Connection, token: str | int, kind: str, within: Ranges) -> int:
    """How many memories promote, oppose or fire on the token."""
    where, parameters = _condition(database, token, within)
    if kind not in _KINDS:
        raise OptionError(f"{kind!r} cannot be counted; choose of {', '.join(_KINDS)}")
    found = database.execute(f"SELECT count(DISTINCT memory) FROM {_KINDS[kind][1]} AND {where}", parameters)
    return int(found.fetchone()[0])


def _condition(database: sqlite3.Connection, token: str | int, within: Ranges) -> tuple[str, list[Any]]:
    """SQL that keeps the rows of the token's ids in these layers, and its parameters."""
    ids = [found.id for found in exactly(database, token)]
    where, parameters = condition("memory", within)
    return f"token IN ({', '.join('?' * len(ids))}) AND {where}", [*ids, *parameters]
