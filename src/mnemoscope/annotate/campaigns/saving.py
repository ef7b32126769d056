"""Writes judgements into the database: each one a new row, stored once however often it is sent; and undoes them.

Runs inside a writing transaction of the store. The rules of blindness are here, those of a single judgement in
annotate/judgements/rules.py.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, func, select

from mnemoscope.annotate.campaigns.items import Row
from mnemoscope.annotate.campaigns.views import NONE, Annotator, State, Step, has_submitted, is_finished, read_history
from mnemoscope.annotate.judgements import rules
from mnemoscope.annotate.judgements.tables import annotators, judgements
from mnemoscope.errors import AnnotationError

ALL_WORK: Row = {"id": None}


@dataclass(frozen=True)
class SavedJudgement:
    """A stored judgement; `again` if it had been stored before."""

    key: str
    made_at: str
    pattern: int | None = None
    again: bool = False


def add_annotator(connection: Connection, name: str, *, role: str = "annotator", token_hash: str | None = None) -> None:
    """Raises AnnotationError if the name is taken, ignoring case."""
    folded = name.casefold()
    taken = connection.execute(select(annotators.c.name).where(annotators.c.folded == folded)).scalar()
    if taken is not None:
        raise AnnotationError(f"there is an annotator {taken!r} already; choose another name, or renew that invitation")
    row = {"name": name, "folded": folded, "role": role, "token_hash": token_hash, "made_at": rules.current_time()}
    connection.execute(annotators.insert().values(row))


def find_row(connection: Connection, table: Table, *, author: str, key: str) -> RowMapping | None:
    statement = select(table).where(table.c.author == author, table.c.key == key)
    return connection.execute(statement).mappings().first()


class Turn:
    """One judgement of an item (or of ALL_WORK) by an annotator, with a key of its own. It locks the annotator: their
    other transactions wait until this one ends. Every method may raise AnnotationError.
    """

    def __init__(self, connection: Connection, item: Row, annotator: Annotator, *, key: str) -> None:
        self.connection = connection
        self._item = item
        self._annotator = annotator
        self._key = key
        statement = select(annotators.c.id).where(annotators.c.name == annotator.name).with_for_update()
        if connection.execute(statement).scalar() is None:
            raise AnnotationError(f"there is no annotator {annotator.name!r}; invite them first")

    def history(self) -> tuple[dict[int, State], list[Step]]:
        return read_history(self.connection, self._item["id"], self._annotator.name)

    def save(self, pattern: int | None, state: State) -> SavedJudgement:
        """Stores a pattern (`pattern` None: a new one), or its retraction."""
        if stored := self.begin(judgements, **state._asdict(), **({} if pattern is None else {"pattern": pattern})):
            return stored
        known, _ = self.history()
        if state == NONE and pattern not in known:
            raise AnnotationError(f"there is no pattern {pattern} to take back")
        if pattern is None:
            pattern = next((number for number in range(rules.MOST_PATTERNS) if number not in known), None)
            if pattern is None:
                raise AnnotationError(f"there are {rules.MOST_PATTERNS} patterns already; take one back first")
        return self.add_state(pattern, state)

    def begin(self, table: Table, **values: Any) -> SavedJudgement | None:
        """The row stored under the key, or None if there is none and the annotator may judge. Raises AnnotationError if
        the key belongs to another judgement, if the judgement would not be blind, and for a pattern of a finished item.
        """
        item, name = self._item, self._annotator.name
        row = find_row(self.connection, table, author=name, key=self._key)
        if row is not None:
            if any(row[column] != value for column, value in (values | {"item": item["id"]}).items()):
                raise AnnotationError(
                    f"key {self._key!r} was used for another judgement; send each under a key of its own"
                )
            return SavedJudgement(self._key, row["made_at"], row.get("pattern"), again=True)
        if item["kind"] == "chosen":
            return None
        if self._annotator.role == "host":
            raise AnnotationError("a host sees all judgements and so cannot judge; invite yourself by another name")
        if has_submitted(self.connection, self._annotator):
            raise AnnotationError(f"{name} has handed in, and may have seen what others said; nothing changes")
        if table is judgements and is_finished(self.connection, item["id"], name):
            raise AnnotationError("this item is finished; take it up again before changing it")
        return None

    def add_state(self, pattern: int, state: State, *, undoes: str | None = None, suffix: str = "") -> SavedJudgement:
        """Stores a state of a pattern; `suffix` tells its key from that of another row of the same judgement."""
        about = {"layer": self._item["layer"], "memory": self._item["memory"], "pattern": pattern}
        control = int(self._item["kind"] == "control")
        key = f"{self._key}{suffix}"
        return self.add(judgements, **about, **state._asdict(), control=control, key=key, undoes=undoes)

    def add(self, table: Table, **values: Any) -> SavedJudgement:
        row = {
            "author": self._annotator.name, "made_at": self._time(table), "key": self._key,
            "item": self._item["id"], **values,
        }  # fmt: skip
        self.connection.execute(table.insert().values(row))
        return SavedJudgement(row["key"], row["made_at"], values.get("pattern"))

    def _time(self, table: Table) -> str:
        """The current time, or just after the author's latest row on the item if a clock was set back: the last row
        must win. At the maximal time the same time is used again; among rows of equal time the later id counts.
        """
        here = (table.c.item == self._item["id"], table.c.author == self._annotator.name)
        statement = select(func.max(table.c.made_at)).where(*here)
        latest, now = self.connection.execute(statement).scalar(), rules.current_time()
        if latest is None or latest < now:
            return now
        last = datetime.fromisoformat(latest)
        return str(latest) if last == rules.LAST else rules.format_time(last + timedelta(microseconds=1))
