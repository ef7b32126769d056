"""The store of one atlas's annotations: one method for each operation of a page, each its own transaction.

Reading is in views.py, writing in saving.py. Several stores, in threads or processes, may use one database at once.
Invitations are secrets; only their hash is stored. Paper, section 3.1.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

import polars as pl
from sqlalchemy import Connection, func, select, update

from mnemoscope.annotate.campaigns import items, saving, views
from mnemoscope.annotate.campaigns.database import Database, address
from mnemoscope.annotate.campaigns.saving import SavedJudgement, Turn
from mnemoscope.annotate.campaigns.views import (
    Annotator,
    Campaign,
    CaseView,
    Invitation,
    KeyView,
    OthersJudgement,
    Place,
)
from mnemoscope.annotate.judgements import rules, tables
from mnemoscope.annotate.judgements.tables import annotators
from mnemoscope.atlas import Atlas
from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.memory_names import MemoryId

PEOPLE = select(annotators.c.name, annotators.c.role)


def open_store(atlas: Atlas, at: str | Path | None = None) -> "Store":
    """Opens the annotations of the atlas: its own annotations.sqlite, another file, or `postgresql://USER@HOST/NAME`.

    Created if there are none. Raises AnnotationError if the database cannot be reached, is damaged, or is of another
    version or another atlas.
    """
    return Store(atlas, Database(address(at, atlas.path), atlas=atlas.manifest_hash))


@final
class Store:
    """The annotations of one atlas; close it, or use it in a `with` block. Every method may raise AnnotationError."""

    def __init__(self, atlas: Atlas, database: Database) -> None:
        self.atlas = atlas
        self.database = database
        self._items = items.ItemReader(atlas)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database. Saved judgements do not depend on it."""
        self.database.close()

    def start_campaign(
        self, *, keys_per_layer: int = 10, controls: int | None = None, cases: int = 100, seed: int = 0
    ) -> Campaign:
        """Samples the items to judge, or returns the campaign if it was started with the same sizes and seed.

        controls: in all; None: a fifth of the keys, at least 5. cases: compositions of those that `mnemoscope analyze`
        listed. Raises AnnotationError if there is another campaign: a database holds one.
        """
        sizes, sampled = items.sample(
            self.atlas, keys_per_layer=keys_per_layer, controls=controls, cases=cases, seed=seed
        )
        facts = {**sizes, "uid": secrets.token_hex(16), "made_at": rules.current_time()}
        with self._exclusive_transaction() as connection:
            items.store_campaign(connection, sampled, facts)
        drawn = self.campaign()
        assert drawn is not None
        if any(getattr(drawn, name) != value for name, value in sizes.items()):
            raise AnnotationError(
                f"{self.database.name} holds a campaign already (seed {drawn.seed}, {drawn.keys_per_layer} keys per"
                f" layer, {drawn.controls} controls, {drawn.cases} cases); give another database for another campaign"
            )
        return drawn

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[Connection]:
        with self.database.writing() as connection:
            # SQLite has one writer anyway.
            if not self.database.sqlite:
                connection.exec_driver_sql("LOCK TABLE campaigns IN EXCLUSIVE MODE")
            yield connection

    def campaign(self) -> Campaign | None:
        """The campaign, or None."""
        with self.database.reading() as connection:
            row = connection.execute(select(tables.campaigns)).mappings().first()
            statement = select(func.count()).select_from(tables.items).where(tables.items.c.kind == "key")
            keys = int(connection.execute(statement).scalar_one())
        names = ("seed", "keys_per_layer", "controls", "cases", "made_at")
        return None if row is None else Campaign(**{name: row[name] for name in names}, keys=keys)

    def invite(self, name: str, *, role: str = "annotator") -> Invitation:
        """Adds an annotator (or host) and returns the secret of their link, which is shown only once."""
        rules.check_choice(role, tables.ROLES, what="role")
        annotator = Annotator(rules.check_name(name), role)
        token = secrets.token_urlsafe(24)
        with self.database.writing() as connection:
            saving.add_annotator(connection, annotator.name, role=role, token_hash=_hash_token(token))
        return Invitation(annotator, token)

    def renew(self, name: str) -> Invitation:
        """A new secret for an annotator; the old one becomes void."""
        token = secrets.token_urlsafe(24)
        return Invitation(self._replace_token(name, _hash_token(token)), token)

    def withdraw(self, name: str) -> None:
        """Voids an annotator's secret; their judgements stay."""
        self._replace_token(name, None)

    def _replace_token(self, name: str, token_hash: str | None) -> Annotator:
        here = annotators.c.folded == str(name).strip().casefold()
        with self.database.writing() as connection:
            row = connection.execute(PEOPLE.where(here)).first()
            if row is None:
                raise AnnotationError(f"there is no annotator {name!r}; invite them first")
            connection.execute(update(annotators).where(here).values(token_hash=token_hash))
        return Annotator(*row)

    def annotator(self, token: str) -> Annotator | None:
        """The annotator with this invitation, or None."""
        with self.database.reading() as connection:
            row = connection.execute(PEOPLE.where(annotators.c.token_hash == _hash_token(token))).first()
        return None if row is None else Annotator(*row)

    def annotators(self) -> tuple[Annotator, ...]:
        """All annotators, invited or imported, in the order of their invitations."""
        with self.database.reading() as connection:
            return tuple(Annotator(*row) for row in connection.execute(PEOPLE.order_by(annotators.c.id)))

    def places(self, annotator: Annotator) -> tuple[Place, ...]:
        """The campaign's items in this annotator's own order: keys (controls among them), then compositions."""
        with self.database.reading() as connection:
            return views.list_places(connection, annotator)

    def progress(self, annotator: Annotator) -> views.Progress:
        """The annotator's numbers of items and finished items, and whether all work is handed in."""
        with self.database.reading() as connection:
            places = views.list_places(connection, annotator)
            handed_in = views.has_submitted(connection, annotator)
        keys, cases = ([place.finished for place in places if place.kind == kind] for kind in ("key", "case"))
        return views.Progress(len(keys), sum(keys), len(cases), sum(cases), handed_in)

    def view(self, code: str, annotator: Annotator) -> KeyView | CaseView:
        """An item as the annotator sees it: its prefixes and their own judgements. A campaign's keys stay unnamed."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
            if item["kind"] == "case":
                return views.case_view(connection, item, annotator)
            chosen = self.atlas.name(item["layer"], item["memory"]) if item["kind"] == "chosen" else None
            return views.key_view(connection, item, annotator, self._items.read(item), chosen)

    def view_memory(self, memory: MemoryId, annotator: Annotator) -> KeyView:
        """A memory outside the campaign as an annotator sees it. Stores nothing, even if nothing was judged yet.

        Its code is the memory's name until `choose` assigns another. Raises MemoryIdError.
        """
        memory_id = self.atlas[memory].id
        number = self.atlas.number(memory_id)
        with self.database.reading() as connection:
            item = items.find_item(connection, "chosen", memory_id.layer, number)
            if item is not None:
                return views.key_view(connection, item, annotator, self._items.read(item), memory_id)
        prefixes = self._items.read_memory(memory_id.layer, number).prefixes
        return KeyView(str(memory_id), prefixes, (), False, False, False, str(memory_id))

    def choose(self, memory: MemoryId) -> str:
        """The code under which a memory outside the campaign is judged. Raises MemoryIdError."""
        layer, number = memory.layer, self.atlas.number(memory)
        with self._exclusive_transaction() as connection:
            stored = items.find_item(connection, "chosen", layer, number)
            return items.store_chosen(connection, layer, number) if stored is None else str(stored["code"])

    def save(
        self, code: str, annotator: Annotator, *, kind: str, description: str, marks: Sequence[int],
        pattern: int | None = None, key: str | None = None,
    ) -> SavedJudgement:  # fmt: skip
        """Stores a pattern: its class, its description, and the numbers of the prefixes that share it (at least 3).

        pattern: the annotator's number of this item's pattern; None: a new one. key: the same for every attempt to send
        this judgement, which is then stored once.
        """
        checked = rules.check_choice(kind, rules.PATTERN_KINDS, what="class"), rules.check_description(description)
        number = None if pattern is None else rules.check_pattern(pattern)
        item = self._item(code)
        ranks = self._items.read(item).ranks
        triggers = json.dumps([ranks[mark] for mark in rules.check_marks(marks, len(ranks))])
        with self._turn(item, annotator, key) as turn:
            return turn.save(number, views.State(*checked, triggers))

    def retract(self, code: str, annotator: Annotator, *, pattern: int, key: str | None = None) -> SavedJudgement:
        """Retracts a pattern: it no longer counts, but its row stays."""
        number = rules.check_pattern(pattern)
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.save(number, views.NONE)

    def undo(self, code: str, annotator: Annotator, *, key: str | None = None) -> SavedJudgement:
        """Undoes the latest step on this item; repeated calls undo earlier ones."""
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.undo()

    def finish(
        self, code: str, annotator: Annotator, *, none: bool = False, done: bool = True, key: str | None = None
    ) -> SavedJudgement:
        """Marks the item as finished; `none`: without a pattern; `done=False`: resumes it."""
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.finish(done=done, none=none)

    def judge(self, code: str, annotator: Annotator, *, verdict: str, key: str | None = None) -> SavedJudgement:
        """Gives a composition of the last layer the verdict `related` or `distant`; `none` retracts it."""
        rules.check_choice(verdict, rules.VERDICTS, what="verdict")
        with self._turn(self._item(code, case=True), annotator, key) as turn:
            return turn.judge(verdict)

    def hand_in(self, annotator: Annotator, *, key: str | None = None) -> SavedJudgement:
        """Hands in all work: from then on the annotator sees others' judgements and can change nothing."""
        with self._turn(saving.ALL_WORK, annotator, key) as turn:
            left = sum(not place.finished for place in views.list_places(turn.connection, annotator))
            if left:
                raise AnnotationError(f"{left} items are not finished yet; finish them before handing in")
            return turn.hand_in()

    def others(self, code: str, annotator: Annotator) -> tuple[OthersJudgement, ...]:
        """The judgements of others who have finished the item; only for a host, or after handing in."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
            if annotator.role != "host" and not views.has_submitted(connection, annotator):
                raise AnnotationError("others' judgements can be seen once you have handed in your own")
            names = [name for name, _ in connection.execute(PEOPLE.order_by(annotators.c.id)) if name != annotator.name]
            others = [views.read_others(connection, item, name, self.shown_ranks(item)) for name in names]
        return tuple(one for one in others if one is not None)

    def read_published(self, memory: MemoryId | None = None) -> pl.DataFrame:
        """The final judgements that may be shown, of all memories or one; columns of judgements/reading.py."""
        with self.database.reading() as connection:
            place = None if memory is None else (memory.layer, self.atlas.number(memory))
            rows = views.read_judgements(connection, self.database.name, place)
            return rows if views.is_over(connection) else rows.filter(~pl.col("sampled"))

    def shown_ranks(self, item: items.Row) -> tuple[int, ...]:
        """The ranks of the triggers that an item shows; a control numbers its own."""
        return () if item["kind"] == "case" else self._items.read(item).ranks

    @contextmanager
    def _turn(self, item: items.Row, annotator: Annotator, key: str | None) -> Iterator[Turn]:
        known = rules.judgement_key(key)
        with self.database.writing() as connection:
            yield Turn(connection, item, annotator, key=known)

    def _item(self, code: str, *, case: bool = False) -> items.Row:
        """The item, read in its own transaction: items never change, and reading the atlas must not block others."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
        if item["kind"] == "case" and not case:
            raise AnnotationError("this item is a composition; call it related or distant instead")
        if item["kind"] != "case" and case:
            raise AnnotationError("this item is no composition; mark its patterns instead")
        return item


def _hash_token(token: str) -> str:
    # A plain hash is enough for a token of 24 random bytes.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
