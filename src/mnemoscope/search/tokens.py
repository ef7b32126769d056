"""Tokens by how they read, and the memories that promote them, oppose them, or fire on them."""

import sqlite3
from typing import Any

from mnemoscope.errors import OptionError, SearchError
from mnemoscope.search.answers import Firing, Promotion, Token
from mnemoscope.search.layout import BOTTOM, TOP
from mnemoscope.search.places import Places, Ranges, condition
from mnemoscope.search.text import MOST_CHARACTERS

_COLUMNS = "token, text, shown, count"
_LIKE = f"""
SELECT {_COLUMNS} FROM vocabulary WHERE text != ''
  AND (text = :text OR instr(shown, :text) OR (:folded != '' AND instr(folded, :folded)))
ORDER BY text != :text AND shown != :text, folded != :folded,
  instr(shown, :text) != 1 AND instr(folded, :folded) != 1, count DESC, token
LIMIT :limit
"""


def like(database: sqlite3.Connection, text: str, *, limit: int) -> tuple[Token, ...]:
    """The tokens that read like `text`, the same text first."""
    text = _checked(text)
    rows = database.execute(_LIKE, {"text": text, "folded": text.strip().casefold(), "limit": limit})
    return tuple(Token(*row) for row in rows)


def exactly(database: sqlite3.Connection, token: str | int) -> tuple[Token, ...]:
    """The tokens of this text, written plainly or as shown, or the one of this id; raises SearchError."""
    if isinstance(token, int):
        if not 0 <= token < 1 << 31:
            raise SearchError(f"token {token} is not in the vocabulary; {_size(database)}")
        found = database.execute(f"SELECT {_COLUMNS} FROM vocabulary WHERE token = ?", (token,)).fetchall()
        if not found:
            raise SearchError(f"token {token} is not in the vocabulary; {_size(database)}")
        return (Token(*found[0]),)
    text = _checked(token)
    for column in ("text", "shown"):
        found = database.execute(
            f"SELECT {_COLUMNS} FROM vocabulary WHERE text != '' AND {column} = ? ORDER BY count DESC, token", (text,)
        ).fetchall()
        if found:
            return tuple(Token(*row) for row in found)
    near = ", ".join(repr(found.shown) for found in like(database, text, limit=5))
    raise SearchError(f"no token reads {token!r}" + (f"; there are {near}" if near else " or holds it"))


def _size(database: sqlite3.Connection) -> str:
    last = database.execute("SELECT max(token) FROM vocabulary").fetchone()[0]
    return f"it has tokens 0-{last}"


def _checked(text: str) -> str:
    if not text:
        raise SearchError("an empty text names no token; type one as it reads, such as '·Paris'")
    if len(text) > MOST_CHARACTERS:
        raise SearchError(f"the token's text has {len(text):,} characters; at most {MOST_CHARACTERS:,} can be searched")
    return text.encode("utf-8", "replace").decode()


def _chosen(database: sqlite3.Connection, token: str | int, within: Ranges) -> tuple[str, list[Any]]:
    """SQL that keeps the rows of the token's ids in these layers, and its parameters."""
    ids = [found.id for found in exactly(database, token)]
    where, parameters = condition("memory", within)
    return f"token IN ({', '.join('?' * len(ids))}) AND {where}", [*ids, *parameters]


def promoting(
    database: sqlite3.Connection,
    places: Places,
    token: str | int,
    side: int,
    within: Ranges,
    *,
    limit: int,
    offset: int,
) -> tuple[Promotion, ...]:
    """One page of the memories whose value has the token at its top (or bottom)."""
    where, parameters = _chosen(database, token, within)
    best = "probability DESC, rank" if side == TOP else "rank, score DESC"
    rows = database.execute(
        f"SELECT memory, token, rank, probability, score FROM says WHERE {where} AND side = ?"
        f" ORDER BY {best}, memory, token LIMIT ? OFFSET ?",
        [*parameters, side, limit, offset],
    )
    return tuple(Promotion(places.id(memory), *rest) for memory, *rest in rows)


def firing_on(
    database: sqlite3.Connection, places: Places, token: str | int, within: Ranges, *, limit: int, offset: int
) -> tuple[Firing, ...]:
    """One page of the memories with triggers that end in the token."""
    where, parameters = _chosen(database, token, within)
    rows = database.execute(
        f"SELECT memory, sum(triggers), min(rank) FROM fires WHERE {where}"
        " GROUP BY memory ORDER BY 2 DESC, 3, memory LIMIT ? OFFSET ?",
        [*parameters, limit, offset],
    )
    return tuple(Firing(places.id(memory), triggers, rank) for memory, triggers, rank in rows)


def count(database: sqlite3.Connection, token: str | int, kind: str, within: Ranges) -> int:
    """How many memories promote, oppose or fire on the token."""
    where, parameters = _chosen(database, token, within)
    sources: dict[str, tuple[str, list[int]]] = {
        "promotes": ("says WHERE side = ?", [TOP]),
        "demotes": ("says WHERE side = ?", [BOTTOM]),
        "fires": ("fires WHERE ? = 0", [0]),
    }
    if kind not in sources:
        raise OptionError(f"{kind!r} cannot be counted; choose of {', '.join(sources)}")
    table, first = sources[kind]
    found = database.execute(f"SELECT count(DISTINCT memory) FROM {table} AND {where}", [*first, *parameters])
    return int(found.fetchone()[0])
