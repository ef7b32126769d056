"""The store of one atlas's annotations: one method, and one transaction, for each operation of a page.

Every judgement is a new row, which is stored once even if it is sent again. The rules of blindness are here, those of a
single judgement in judgements/rules.py. Several stores, in threads or processes, may use one database at once.
"""

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, final

import polars as pl

from mnemoscope.annotate.campaigns import items, views
from mnemoscope.annotate.campaigns.database import Database, annotations_file
from mnemoscope.annotate.campaigns.views import Annotator, Campaign, CaseView, Invitation, KeyView, State
from mnemoscope.annotate.judgements import rules, tables
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_names import MemoryId

CACHE_SIZE = 1000
ALL_WORK: items.Row = {"id": None}
PEOPLE = "SELECT name, role FROM annotators"


@dataclass(frozen=True)
class SavedJudgement:
    key: str
    made_at: str
    pattern: int | None = None
    again: bool = False
    """Whether it had been stored before."""


def add_annotator(
    connection: sqlite3.Connection, name: str, *, role: str = "annotator", token_hash: str | None = None
) -> None:
    """Raises AnnotationError if the name is taken, ignoring case."""
    folded = name.casefold()
    if taken := connection.execute(f"{PEOPLE} WHERE folded = ?", (folded,)).fetchone():
        raise AnnotationError(
            f"there is an annotator {taken['name']!r} already; choose another name, or renew that invitation"
        )
    row = {"name": name, "folded": folded, "role": role, "token_hash": token_hash, "made_at": rules.current_time()}
    tables.insert(connection, "annotators", row)


def add_author(connection: sqlite3.Connection, name: str, kind: str) -> None:
    """Adds the author of imported rows, a person or a model, without an invitation."""
    stored = connection.execute(f"{PEOPLE} WHERE name = ?", (name,)).fetchone()
    if stored is None:
        add_annotator(connection, name, role="model" if kind == "model" else "annotator")
    elif (stored["role"] == "model") != (kind == "model"):
        raise AnnotationError(f"{name} is no {kind} here; give another name, or the other author_kind")


def find_row(connection: sqlite3.Connection, table: str, *, author: str, key: str) -> items.Row | None:
    row = connection.execute(f"SELECT * FROM {table} WHERE author = ? AND key = ?", (author, key)).fetchone()
    return None if row is None else dict(row)


@dataclass(frozen=True)
class Turn:
    """One judgement of an item, or of ALL_WORK. Every method may raise AnnotationError."""

    connection: sqlite3.Connection
    item: items.Row
    annotator: Annotator
    key: str

    def patterns(self) -> dict[int, State]:
        return views.read_history(self.connection, self.item["id"], self.annotator.name)[0]

    def save(self, pattern: int | None, state: State) -> SavedJudgement:
        """`pattern` None is a new one; state NONE retracts it."""
        if stored := self.begin("judgements", **state._asdict(), **({} if pattern is None else {"pattern": pattern})):
            return stored
        patterns = self.patterns()
        if state == views.NONE and pattern not in patterns:
            raise AnnotationError(f"there is no pattern {pattern} to take back")
        if pattern is None:
            pattern = next((number for number in range(rules.MOST_PATTERNS) if number not in patterns), None)
            if pattern is None:
                raise AnnotationError(f"there are {rules.MOST_PATTERNS} patterns already; take one back first")
        return self.add_state(pattern, state)

    def begin(self, table: str, **values: Any) -> SavedJudgement | None:
        """The judgement stored under the key, or None."""
        item, name = self.item, self.annotator.name
        row = find_row(self.connection, table, author=name, key=self.key)
        if row is not None:
            if any(row[column] != value for column, value in (values | {"item": item["id"]}).items()):
                raise AnnotationError(
                    f"key {self.key!r} was used for another judgement; send each under a key of its own"
                )
            return SavedJudgement(self.key, row["made_at"], row.get("pattern"), again=True)
        if item["kind"] == "chosen":
            return None
        if self.annotator.role == "host":
            raise AnnotationError("a host sees all judgements and so cannot judge; invite yourself by another name")
        if views.has_submitted(self.connection, self.annotator):
            raise AnnotationError(f"{name} has handed in and may have seen others' judgements; nothing was changed")
        if table == "judgements" and views.is_finished(self.connection, item["id"], name):
            raise AnnotationError("this item is finished; take it up again before changing it")
        return None

    def add_state(self, pattern: int, state: State, *, undoes: str | None = None, suffix: str = "") -> SavedJudgement:
        """`suffix` makes the key of a second row of the same judgement."""
        about = {"layer": self.item["layer"], "memory": self.item["memory"], "pattern": pattern}
        control = int(self.item["kind"] == "control")
        key = f"{self.key}{suffix}"
        return self.add("judgements", **about, **state._asdict(), control=control, key=key, undoes=undoes)

    def add(self, table: str, **values: Any) -> SavedJudgement:
        row = {
            "author": self.annotator.name,
            "made_at": self._time(table),
            "key": self.key,
            "item": self.item["id"],
            **values,
        }
        tables.insert(self.connection, table, row)
        return SavedJudgement(row["key"], row["made_at"], values.get("pattern"))

    def _time(self, table: str) -> str:
        """The current time, or if a clock was set back, just after the author's latest row on the item: the last row
        counts.
        """
        statement = f"SELECT max(made_at) FROM {table} WHERE item = ? AND author = ?"
        (latest,) = self.connection.execute(statement, (self.item["id"], self.annotator.name)).fetchone()
        now = rules.current_time()
        if latest is None or latest < now:
            return now
        last = datetime.fromisoformat(latest)
        return str(latest) if last == rules.LAST else rules.format_time(last + timedelta(microseconds=1))


def open_store(atlas: Atlas | str | Path, at: str | Path | None = None) -> "Store":
    """Opens or creates the annotations of the atlas (or its folder): its own annotations.sqlite, or the file `at`.
    Raises AnnotationError if the file cannot be used, is damaged, or is of another version or another atlas, and
    OptionError for an address such as `sqlite:///...`.
    """
    atlas = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    return Store(atlas, Database(annotations_file(at, atlas.path), atlas=atlas.manifest_hash))


@final
class Store(AbstractContextManager["Store"]):
    """Close it, or use it in a `with` block. Every method may raise AnnotationError."""

    def __init__(self, atlas: Atlas, database: Database) -> None:
        self.atlas = atlas
        self.database = database
        self._prefix_cache = Cache(CACHE_SIZE)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def start_campaign(
        self,
        *,
        keys_per_layer: int = 10,
        controls: int | None = None,
        cases: int = 100,
        seed: int = 0,
        keys_in_all: int | None = None,
    ) -> Campaign:
        """Samples the items to judge, or returns the campaign with the same sizes and seed.

        controls: in all; None: a fifth of the keys, at least 5. keys_in_all: the most, drawn of those. cases: of the
        compositions that `mnemoscope analyze` listed. Raises AnnotationError if the database has another campaign.
        """
        sizes, sampled = items.sample(
            self.atlas,
            keys_per_layer=keys_per_layer,
            controls=controls,
            cases=cases,
            seed=seed,
            keys_in_all=keys_in_all,
        )
        facts = {**sizes, "uid": secrets.token_hex(16), "made_at": rules.current_time()}
        with self.database.writing() as connection:
            items.store_campaign(connection, sampled, facts)
        drawn = self.campaign()
        assert drawn is not None
        if any(getattr(drawn, name) != value for name, value in sizes.items()):
            raise AnnotationError(
                f"{self.database.path} holds a campaign already (seed {drawn.seed}, {drawn.keys_per_layer} keys per"
                f" layer, {drawn.controls} controls, {drawn.cases} cases); give another database for another campaign"
            )
        return drawn

    def campaign(self) -> Campaign | None:
        keys = "SELECT count(*) FROM items WHERE kind = 'key'"
        with self.database.reading() as connection:
            statement = f"SELECT seed, keys_per_layer, controls, cases, made_at, ({keys}) FROM campaigns"
            row = connection.execute(statement).fetchone()
        return None if row is None else Campaign(*row)

    def invite(self, name: str, *, role: str = "annotator") -> Invitation:
        """Adds an annotator (or host). The secret of their link cannot be read again."""
        rules.check_choice(role, tables.ROLES, what="role")
        annotator = Annotator(rules.check_name(name), role)
        token = secrets.token_urlsafe(24)
        with self.database.writing() as connection:
            add_annotator(connection, annotator.name, role=role, token_hash=_hash_token(token))
        return Invitation(annotator, token)

    def renew(self, name: str) -> Invitation:
        """Replaces an annotator's secret."""
        token = secrets.token_urlsafe(24)
        return Invitation(self._replace_token(name, _hash_token(token)), token)

    def withdraw(self, name: str) -> None:
        """Deletes an annotator's secret; their judgements stay."""
        self._replace_token(name, None)

    def _replace_token(self, name: str, token_hash: str | None) -> Annotator:
        folded = str(name).strip().casefold()
        with self.database.writing() as connection:
            row = connection.execute(f"{PEOPLE} WHERE folded = ?", (folded,)).fetchone()
            if row is None:
                raise AnnotationError(f"there is no annotator {name!r}; invite them first")
            connection.execute("UPDATE annotators SET token_hash = ? WHERE folded = ?", (token_hash, folded))
        return Annotator(*row)

    def annotator(self, token: str) -> Annotator | None:
        with self.database.reading() as connection:
            row = connection.execute(f"{PEOPLE} WHERE token_hash = ?", (_hash_token(token),)).fetchone()
        return None if row is None else Annotator(*row)

    def annotators(self) -> tuple[Annotator, ...]:
        """All annotators, invited or imported, the oldest first."""
        with self.database.reading() as connection:
            return tuple(Annotator(*row) for row in connection.execute(f"{PEOPLE} ORDER BY id"))

    def places(self, annotator: Annotator) -> tuple[views.Place, ...]:
        """The campaign's items in this annotator's own order: keys (controls among them), then compositions."""
        with self.database.reading() as connection:
            return views.list_places(connection, annotator)

    def progress(self, annotator: Annotator) -> views.Progress:
        with self.database.reading() as connection:
            places = views.list_places(connection, annotator)
            handed_in = views.has_submitted(connection, annotator)
        keys, cases = ([place.finished for place in places if place.kind == kind] for kind in ("key", "case"))
        return views.Progress(len(keys), sum(keys), len(cases), sum(cases), handed_in)

    def view(self, code: str, annotator: Annotator) -> KeyView | CaseView:
        """An item with the annotator's own judgements; a campaign's keys are unnamed."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
            if item["kind"] == "case":
                verdict = views.read_verdict(connection, item["id"], annotator.name)
                return CaseView(code, **json.loads(item["content"]), verdict=verdict, finished=verdict is not None)
            memory = self.atlas.name(item["layer"], item["memory"]) if item["kind"] == "chosen" else None
            return views.key_view(connection, item, annotator, self._read_prefixes(item), memory)

    def view_memory(self, memory: MemoryId, annotator: Annotator) -> KeyView:
        """A memory outside the campaign. Its code is the memory's name until `choose`. Raises MemoryIdError."""
        memory_id = self.atlas[memory].id
        number = self.atlas.number(memory_id)
        with self.database.reading() as connection:
            item = items.find_item(connection, "chosen", memory_id.layer, number) or {
                "id": -1,
                "code": str(memory_id),
                "kind": "chosen",
                "layer": memory_id.layer,
                "memory": number,
            }
            return views.key_view(connection, item, annotator, self._read_prefixes(item), memory_id)

    def choose(self, memory: MemoryId) -> str:
        """The code under which a memory outside the campaign is judged. Raises MemoryIdError."""
        layer, number = memory.layer, self.atlas.number(memory)
        with self.database.writing() as connection:
            stored = items.find_item(connection, "chosen", layer, number)
            return items.store_chosen(connection, layer, number) if stored is None else str(stored["code"])

    def save(
        self,
        code: str,
        annotator: Annotator,
        *,
        kind: str,
        description: str,
        marks: Sequence[int],
        pattern: int | None = None,
        key: str | None = None,
    ) -> SavedJudgement:
        """Stores a pattern. marks: the numbers of the prefixes that share it, at least 3. pattern: its number, None for
        a new one. key: the same for every attempt to send this judgement, which is then stored once.
        """
        checked = rules.check_choice(kind, rules.PATTERN_KINDS, what="class"), rules.check_description(description)
        number = None if pattern is None else rules.check_pattern(pattern)
        item = self._item(code)
        _, ranks = self._read_prefixes(item)
        triggers = json.dumps([ranks[mark] for mark in rules.check_marks(marks, len(ranks))])
        with self._turn(item, annotator, key) as turn:
            return turn.save(number, State(*checked, triggers))

    def retract(self, code: str, annotator: Annotator, *, pattern: int, key: str | None = None) -> SavedJudgement:
        number = rules.check_pattern(pattern)
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.save(number, views.NONE)

    def undo(self, code: str, annotator: Annotator, *, key: str | None = None) -> SavedJudgement:
        """Undoes the annotator's latest step on this item that is not undone yet."""
        with self._turn(self._item(code), annotator, key) as turn:
            if stored := turn.begin("judgements"):
                return stored
            _, steps = views.read_history(turn.connection, turn.item["id"], annotator.name)
            if not steps:
                raise AnnotationError("there is nothing to undo")
            undone, pattern, before = steps[-1]
            return turn.add_state(pattern, before, undoes=undone)

    def finish(
        self, code: str, annotator: Annotator, *, none: bool = False, done: bool = True, key: str | None = None
    ) -> SavedJudgement:
        """Marks the item as finished; `none`: without a pattern; `done=False`: resumes it."""
        with self._turn(self._item(code), annotator, key) as turn:
            if stored := turn.begin("finishes", finished=int(done)):
                return stored
            if done:
                patterns = turn.patterns()
                if none and patterns:
                    raise AnnotationError(
                        f"{len(patterns)} patterns are marked; take them back before saying that there is none"
                    )
                if not none and not patterns:
                    raise AnnotationError("no pattern is marked; mark one, or say that there is none")
                if none:
                    turn.add_state(0, views.NONE, suffix=".none")
            return turn.add("finishes", finished=int(done))

    def judge(self, code: str, annotator: Annotator, *, verdict: str, key: str | None = None) -> SavedJudgement:
        """The verdict on a composition: `related` or `distant`; `none` retracts it."""
        rules.check_choice(verdict, rules.VERDICTS, what="verdict")
        with self._turn(self._item(code, case=True), annotator, key) as turn:
            return turn.begin("verdicts", verdict=verdict) or turn.add("verdicts", verdict=verdict)

    def hand_in(self, annotator: Annotator, *, key: str | None = None) -> SavedJudgement:
        """From then on the annotator sees others' judgements and can change nothing."""
        with self._turn(ALL_WORK, annotator, key) as turn:
            left = sum(not place.finished for place in views.list_places(turn.connection, annotator))
            if left:
                raise AnnotationError(f"{left} items are not finished yet; finish them before handing in")
            statement = "SELECT key, made_at FROM finishes WHERE author = ? AND item IS NULL"
            row = turn.connection.execute(statement, (annotator.name,)).fetchone()
            if row is None:
                return turn.add("finishes", finished=1)
            return SavedJudgement(row["key"], row["made_at"], again=True)

    def others(self, code: str, annotator: Annotator) -> tuple[views.OthersJudgement, ...]:
        """The judgements of others who have finished the item; only for a host, or after handing in."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
            if annotator.role != "host" and not views.has_submitted(connection, annotator):
                raise AnnotationError("others' judgements can be seen once you have handed in your own")
            names = [name for name, _ in connection.execute(f"{PEOPLE} ORDER BY id") if name != annotator.name]
            others = [views.read_others(connection, item, name, self.shown_ranks(item)) for name in names]
        return tuple(one for one in others if one is not None)

    def read_published(self, memory: MemoryId | None = None) -> pl.DataFrame:
        """The final judgements that may be shown, of all memories or one; columns as of `read_judgements`."""
        with self.database.reading() as connection:
            place = None if memory is None else (memory.layer, self.atlas.number(memory))
            rows = views.read_judgements(connection, self.database.path, place)
            return rows if views.is_over(connection) else rows.filter(~pl.col("sampled"))

    def shown_ranks(self, item: items.Row) -> tuple[int, ...]:
        """The ranks of the triggers that an item shows; a control numbers its own. A sheet may name all."""
        if item["kind"] == "sheet_key":
            return tuple(items.best_ranks(self.atlas, item["layer"], item["memory"]))
        return () if item["kind"].endswith("case") else self._read_prefixes(item)[1]

    def _read_prefixes(self, item: items.Row) -> items.ShownPrefixes:
        return self._prefix_cache.get(item["code"], lambda: items.read_prefixes(self.atlas, item))

    @contextmanager
    def _turn(self, item: items.Row, annotator: Annotator, key: str | None) -> Iterator[Turn]:
        checked = rules.judgement_key(key)
        with self.database.writing() as connection:
            if connection.execute(f"{PEOPLE} WHERE name = ?", (annotator.name,)).fetchone() is None:
                raise AnnotationError(f"there is no annotator {annotator.name!r}; invite them first")
            yield Turn(connection, item, annotator, checked)

    def _item(self, code: str, *, case: bool = False) -> items.Row:
        """Uses a transaction of its own: items never change, and reading the atlas must not block others."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
        if item["kind"] == "case" and not case:
            raise AnnotationError("this item is a composition; call it related or distant instead")
        if item["kind"] != "case" and case:
            raise AnnotationError("this item is not a composition; mark its patterns instead")
        return item


def _hash_token(token: str) -> str:
    # No salt is needed for a token of 24 random bytes.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
