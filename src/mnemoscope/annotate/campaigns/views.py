"""Reads what annotators and pages see: people, their items with their own judgements, and the judgements of others.

A campaign's judgements are unpublished until all invited annotators have handed in, since pages are open to all.
"""

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from mnemoscope.annotate.campaigns.items import Row, ShownPrefix, ShownPrefixes
from mnemoscope.annotate.judgements.reading import BY_ID, WITH_ITEMS, final_judgements
from mnemoscope.foundation.memory_names import MemoryId


@dataclass(frozen=True)
class Annotator:
    """A person who may judge; a host also sees all judgements."""

    name: str
    role: str = "annotator"


@dataclass(frozen=True)
class Invitation:
    annotator: Annotator
    token: str
    """The secret of their link, which is stored only as a hash."""


@dataclass(frozen=True)
class Campaign:
    seed: int
    keys_per_layer: int
    controls: int
    cases: int
    made_at: str
    keys: int
    """The number of keys in all."""


@dataclass(frozen=True)
class AuthoredPattern:
    """`marks` are numbers of the view's prefixes."""

    pattern: int
    kind: str
    description: str
    marks: tuple[int, ...]


@dataclass(frozen=True)
class KeyView:
    """A key or control, with this annotator's judgements."""

    code: str
    prefixes: tuple[ShownPrefix, ...]
    patterns: tuple[AuthoredPattern, ...]
    none: bool
    """Whether the annotator judged that there is no pattern."""
    finished: bool
    can_undo: bool
    memory: str | None = None
    """None in a campaign, whose keys are judged blind."""


@dataclass(frozen=True)
class CaseView:
    """A composition of the last layer, with the tokens of residual, feed-forward layer and output."""

    code: str
    prefix: str
    residual: str
    ffn: str
    output: str
    verdict: str | None
    """related or distant."""
    finished: bool = False


@dataclass(frozen=True)
class Place:
    code: str
    kind: str
    finished: bool


@dataclass(frozen=True)
class Progress:
    """An annotator's numbers of items."""

    keys: int
    keys_finished: int
    cases: int
    cases_finished: int
    handed_in: bool

    @property
    def complete(self) -> bool:
        return self.keys_finished == self.keys and self.cases_finished == self.cases


@dataclass(frozen=True)
class OthersJudgement:
    author: str
    patterns: tuple[AuthoredPattern, ...]
    verdict: str | None = None


class State(NamedTuple):
    kind: str
    description: str
    triggers: str
    """Ranks as JSON."""


NONE = State("none", "", "[]")
"""The state of a pattern that does not exist."""

Step = tuple[str, int, State]
"""The key of a judgement, its pattern, and the state before it."""


def as_patterns(states: dict[int, State], ranks: Sequence[int]) -> tuple[AuthoredPattern, ...]:
    """`ranks` are those of the shown prefixes' triggers."""
    number = {rank: mark for mark, rank in enumerate(ranks)}
    return tuple(
        AuthoredPattern(pattern, kind, text, tuple(number[rank] for rank in json.loads(triggers) if rank in number))
        for pattern, (kind, text, triggers) in states.items()
    )


def read_history(connection: sqlite3.Connection, item: int, author: str) -> tuple[dict[int, State], list[Step]]:
    """An author's present patterns of one key, and the steps that can be undone."""
    statement = "SELECT key, pattern, undoes, kind, description, triggers FROM judgements"
    rows = connection.execute(f"{statement} WHERE item = ? AND author = ? ORDER BY made_at, id", (item, author))
    current: dict[int, State] = {}
    steps: list[Step] = []
    for key, pattern, undoes, *values in rows:
        before, state = current.get(pattern, NONE), State(*values)
        if undoes is not None:
            steps = [step for step in steps if step[0] != undoes]
        elif state != before:
            steps.append((key, pattern, before))
        current[pattern] = state
    return {number: state for number, state in sorted(current.items()) if state.kind != "none"}, steps


def is_finished(connection: sqlite3.Connection, item: int, author: str) -> bool:
    return bool(_read_latest(connection, "finishes", "finished", author, item).get(item))


def read_verdict(connection: sqlite3.Connection, item: int, author: str) -> str | None:
    verdict = _read_latest(connection, "verdicts", "verdict", author, item).get(item)
    return None if verdict == "none" else verdict


def _read_latest(
    connection: sqlite3.Connection, table: str, column: str, author: str, item: int | None = None
) -> dict[int, Any]:
    """The author's latest value by item, or of `item` only, in an append-only table."""
    only, values = ("", (author,)) if item is None else ("AND item = ?", (author, item))
    statement = f"SELECT item, {column} FROM {table} WHERE author = ? {only} ORDER BY made_at, id"
    return dict(tuple(row) for row in connection.execute(statement, values))


def has_submitted(connection: sqlite3.Connection, annotator: Annotator) -> bool:
    statement = "SELECT id FROM finishes WHERE author = ? AND item IS NULL"
    return connection.execute(statement, (annotator.name,)).fetchone() is not None


def list_places(connection: sqlite3.Connection, annotator: Annotator) -> tuple[Place, ...]:
    (uid,) = connection.execute("SELECT uid FROM campaigns").fetchone() or (None,)
    rows = connection.execute("SELECT id, code, kind FROM items WHERE kind IN ('key', 'control', 'case')")
    latest = _read_latest(connection, "finishes", "finished", annotator.name)
    latest |= _read_latest(connection, "verdicts", "verdict", annotator.name)
    done = {item for item, value in latest.items() if value not in (0, "none")}
    places = [Place(code, "case" if kind == "case" else "key", id in done) for id, code, kind in rows]

    def order(place: Place) -> tuple[bool, str]:
        return place.kind == "case", hashlib.sha256(f"{uid}:{annotator.name}:{place.code}".encode()).hexdigest()

    return tuple(sorted(places, key=order))


def key_view(
    connection: sqlite3.Connection, item: Row, annotator: Annotator, prefixes: ShownPrefixes, memory: MemoryId | None
) -> KeyView:
    shown, ranks = prefixes
    states, steps = read_history(connection, item["id"], annotator.name)
    finished = is_finished(connection, item["id"], annotator.name)
    name = None if memory is None else str(memory)
    return KeyView(
        item["code"], shown, as_patterns(states, ranks), finished and not states, finished, bool(steps), name
    )


def read_others(connection: sqlite3.Connection, item: Row, author: str, ranks: Sequence[int]) -> OthersJudgement | None:
    if item["kind"] == "case":
        verdict = read_verdict(connection, item["id"], author)
        return None if verdict is None else OthersJudgement(author, (), verdict)
    states, _ = read_history(connection, item["id"], author)
    seen = bool(states) if item["kind"] == "chosen" else is_finished(connection, item["id"], author)
    return OthersJudgement(author, as_patterns(states, ranks)) if seen else None


def read_judgements(
    connection: sqlite3.Connection, name: object, memory: tuple[int, int] | None = None
) -> pl.DataFrame:
    """The final judgements, of all memories or one (layer, number). `name` is the database's, for AtlasDamaged."""
    of_memory = "WHERE items.kind IN ('key', 'chosen', 'sheet_key') AND items.layer = ? AND items.memory = ?"
    statement = WITH_ITEMS if memory is None else f"{WITH_ITEMS} {of_memory}"
    return final_judgements(connection.execute(f"{statement} {BY_ID}", memory or ()), name)


def is_over(connection: sqlite3.Connection) -> bool:
    """Whether all annotators with a valid invitation have handed in."""
    waiting = """
        SELECT id FROM annotators WHERE role = 'annotator' AND token_hash IS NOT NULL
        AND name NOT IN (SELECT author FROM finishes WHERE item IS NULL)
    """
    return connection.execute(waiting).fetchone() is None
