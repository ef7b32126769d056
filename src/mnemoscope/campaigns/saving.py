"""Judgements going into the database: every one a new row, stored once however often it is sent; and their undoing.

Functions over a connection inside a writing transaction; the rules of blindness are here, those of a single judgement
in judgements/rules.py.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, func, select

from mnemoscope.campaigns import annotators
from mnemoscope.campaigns.records import Annotator, Saved
from mnemoscope.errors import AnnotationError
from mnemoscope.judgements import rules
from mnemoscope.judgements.tables import finishes, items, judgements, verdicts
from mnemoscope.memory import MemoryId

NONE = ("none", "", "[]")
"""Kind, description and triggers of a pattern that is not there."""
State = tuple[str, str, str]
Item = dict[str, Any]
"""A row of table `items`."""


@dataclass(frozen=True)
class History:
    """All that one author ever said of one key: the patterns that stand, and the steps that can be undone."""

    patterns: dict[int, State]
    steps: tuple[tuple[str, int, State], ...]
    """Of each step its key, its pattern, and what stood before."""


def read_item(connection: Connection, code: str) -> Item:
    """The item with this code; raises AnnotationError."""
    row = connection.execute(select(items).where(items.c.code == str(code))).mappings().first()
    if row is None:
        raise AnnotationError(f"there is no item {str(code)[:40]!r} to judge; go back to the list")
    return dict(row)


def find_chosen_item(connection: Connection, memory: MemoryId) -> Item | None:
    """The item of a memory that somebody judged outside the campaign; None where nobody has."""
    here = (items.c.kind == "chosen", items.c.layer == memory.layer, items.c.memory == memory.memory)
    row = connection.execute(select(items).where(*here)).mappings().first()
    return None if row is None else dict(row)


def read_history(connection: Connection, item: int, author: str) -> History:
    """What the author said of the item, from the first word to the last."""
    asked = select(judgements).where(judgements.c.item == item, judgements.c.author == author)
    standing: dict[int, State] = {}
    steps: list[tuple[str, int, State]] = []
    for row in connection.execute(asked.order_by(judgements.c.made_at, judgements.c.id)).mappings():
        before = standing.get(row["pattern"], NONE)
        state = (row["kind"], row["description"], row["triggers"])
        if row["undoes"] is not None:
            steps = [step for step in steps if step[0] != row["undoes"]]
        elif state != before:
            steps.append((row["key"], row["pattern"], before))
        standing[row["pattern"]] = state
    return History({number: state for number, state in sorted(standing.items()) if state[0] != "none"}, tuple(steps))


def find_row(connection: Connection, table: Table, *, author: str, key: str) -> RowMapping | None:
    """The row that this author stored under this key, in one of the tables that only grow."""
    asked = select(table).where(table.c.author == author, table.c.key == key)
    return connection.execute(asked).mappings().first()


def is_finished(connection: Connection, item: int, author: str) -> bool:
    """Whether the author has finished the item, and not taken it up again."""
    asked = select(finishes.c.finished).where(finishes.c.item == item, finishes.c.author == author)
    return bool(connection.execute(asked.order_by(finishes.c.made_at.desc(), finishes.c.id.desc()).limit(1)).scalar())


def read_verdict(connection: Connection, item: int, author: str) -> str | None:
    """The author's verdict on a composition, if there is one."""
    asked = select(verdicts.c.verdict).where(verdicts.c.item == item, verdicts.c.author == author)
    found = connection.execute(asked.order_by(verdicts.c.made_at.desc(), verdicts.c.id.desc()).limit(1)).scalar()
    return None if found in (None, "none") else str(found)


def add_state(
    connection: Connection, item: Item, annotator: Annotator, *, pattern: int, state: State, key: str,
    undoes: str | None = None,
) -> Saved:  # fmt: skip
    """Stores what stands for one pattern from now on."""
    kind, description, triggers = state
    made_at = _after(connection, judgements, item["id"], annotator.name)
    row = {
        "author": annotator.name, "made_at": made_at, "layer": item["layer"], "memory": item["memory"],
        "control": int(item["kind"] == "control"), "pattern": pattern, "kind": kind, "description": description,
        "triggers": triggers, "item": item["id"], "key": key, "undoes": undoes,
    }  # fmt: skip
    connection.execute(judgements.insert().values(row))
    return Saved(key, made_at, pattern)


def save(
    connection: Connection, item: Item, annotator: Annotator, *, pattern: int | None, state: State, key: str
) -> Saved:
    """Stores a pattern (`pattern` None: a new one), or that it is taken back; raises AnnotationError."""
    annotators.lock_annotator(connection, annotator)
    old = find_row(connection, judgements, author=annotator.name, key=key)
    if old is not None:
        same = (old["item"], old["kind"], old["description"], old["triggers"]) == (item["id"], *state)
        if not same or pattern not in (None, old["pattern"]):
            raise AnnotationError(f"key {key!r} was used for another judgement; send each under a key of its own")
        return Saved(key, old["made_at"], old["pattern"], again=True)
    may_change(connection, item, annotator)
    known = read_history(connection, item["id"], annotator.name).patterns
    if state == NONE and pattern not in known:
        raise AnnotationError(f"there is no pattern {pattern} to take back")
    if pattern is None:
        free = [number for number in range(rules.MOST_PATTERNS) if number not in known]
        if not free:
            raise AnnotationError(f"there are {rules.MOST_PATTERNS} patterns already; take one back first")
        pattern = free[0]
    return add_state(connection, item, annotator, pattern=pattern, state=state, key=key)


def undo(connection: Connection, item: Item, annotator: Annotator, *, key: str) -> Saved:
    """Stores what stood before the latest step that is not undone yet; raises AnnotationError."""
    annotators.lock_annotator(connection, annotator)
    old = find_row(connection, judgements, author=annotator.name, key=key)
    if old is not None:
        return Saved(key, old["made_at"], old["pattern"], again=True)
    may_change(connection, item, annotator)
    steps = read_history(connection, item["id"], annotator.name).steps
    if not steps:
        raise AnnotationError("there is nothing to undo")
    undone, pattern, before = steps[-1]
    return add_state(connection, item, annotator, pattern=pattern, state=before, key=key, undoes=undone)


def finish(connection: Connection, item: Item, annotator: Annotator, *, done: bool, none: bool, key: str) -> Saved:
    """Stores that the annotator has finished the item (with `none`: found no pattern), or takes it up again."""
    annotators.lock_annotator(connection, annotator)
    old = find_row(connection, finishes, author=annotator.name, key=key)
    if old is not None:
        if (old["item"], bool(old["finished"])) != (item["id"], done):
            raise AnnotationError(f"key {key!r} was used for another judgement; send each under a key of its own")
        return Saved(key, old["made_at"], again=True)
    may_change(connection, item, annotator, whether_finished=False)
    if done:
        known = read_history(connection, item["id"], annotator.name).patterns
        if none and known:
            raise AnnotationError(f"{len(known)} patterns are marked; take them back before saying that there is none")
        if not none and not known:
            raise AnnotationError("no pattern is marked; mark one, or say that there is none")
        if none:
            add_state(connection, item, annotator, pattern=0, state=NONE, key=f"{key}.none")
    return _event(connection, item["id"], annotator, done=done, key=key)


def hand_in(connection: Connection, annotator: Annotator, *, key: str) -> Saved:
    """Stores that the annotator has handed in all work; may be sent again."""
    old = connection.execute(
        select(finishes).where(finishes.c.author == annotator.name, finishes.c.item.is_(None))
    ).mappings().first()  # fmt: skip
    if old is not None:
        return Saved(old["key"], old["made_at"], again=True)
    return _event(connection, None, annotator, done=True, key=key)


def judge(connection: Connection, item: Item, annotator: Annotator, *, verdict: str, key: str) -> Saved:
    """Stores a verdict on a composition; raises AnnotationError."""
    annotators.lock_annotator(connection, annotator)
    old = find_row(connection, verdicts, author=annotator.name, key=key)
    if old is not None:
        if (old["item"], old["verdict"]) != (item["id"], verdict):
            raise AnnotationError(f"key {key!r} was used for another judgement; send each under a key of its own")
        return Saved(key, old["made_at"], again=True)
    may_change(connection, item, annotator, whether_finished=False)
    made_at = _after(connection, verdicts, item["id"], annotator.name)
    row = {"author": annotator.name, "made_at": made_at, "item": item["id"], "verdict": verdict, "key": key}
    connection.execute(verdicts.insert().values(row))
    return Saved(key, made_at)


def may_change(connection: Connection, item: Item, annotator: Annotator, *, whether_finished: bool = True) -> None:
    """Raises AnnotationError where a judgement would no longer be blind, or the item is finished."""
    if item["kind"] == "chosen":
        return
    if annotator.role == "host":
        raise AnnotationError("a host sees all judgements and so cannot judge; invite yourself by another name")
    if annotators.has_submitted(connection, annotator):
        raise AnnotationError(f"{annotator.name} has handed in, and may have seen what others said; nothing changes")
    if whether_finished and is_finished(connection, item["id"], annotator.name):
        raise AnnotationError("this item is finished; take it up again before changing it")


def _event(connection: Connection, item: int | None, annotator: Annotator, *, done: bool, key: str) -> Saved:
    made_at = _after(connection, finishes, item, annotator.name)
    row = {"author": annotator.name, "made_at": made_at, "item": item, "finished": int(done), "key": key}
    connection.execute(finishes.insert().values(row))
    return Saved(key, made_at)


def _after(connection: Connection, table: Table, item: int | None, author: str) -> str:
    """The time, or just after the author's latest word on the item where a clock was set back: the last must count."""
    here = table.c.item.is_(None) if item is None else table.c.item == item
    latest = connection.execute(select(func.max(table.c.made_at)).where(here, table.c.author == author)).scalar()
    time = rules.current_time()
    if latest is not None and latest >= time:
        last = datetime.fromisoformat(latest)
        # After the end of time comes nothing; of rows at one time the one stored later counts.
        time = latest if last == rules.LAST else rules.format_time(last + timedelta(microseconds=1))
    return time


def ranks(marks: Sequence[int], shown: Sequence[int]) -> str:
    """The marks on a view's prefixes as the ranks of their triggers, as they are stored."""
    return json.dumps([shown[mark] for mark in marks])


def marks(triggers: str, shown: Sequence[int]) -> tuple[int, ...]:
    """The stored ranks as marks on a view's prefixes."""
    number = {rank: mark for mark, rank in enumerate(shown)}
    found: list[Any] = json.loads(triggers)
    return tuple(number[rank] for rank in found if rank in number)
