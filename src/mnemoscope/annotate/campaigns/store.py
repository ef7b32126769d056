"""The store of one atlas's annotations: what a page asks of it, one method for each; every one its own transaction.

What is read over a connection is in views.py, what is written in saving.py. Several stores, in threads or processes,
may be open on one database at once. Invitations are secrets of which only a hash is stored. Paper, section 3.1.
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
    """The annotations of the atlas: its own annotations.sqlite, another file, or `postgresql://USER@HOST/NAME`.

    Made where there are none. Raises AnnotationError for a database that cannot be reached, is damaged, of another
    version or of another atlas.
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
        """Closes the database; what was saved is saved without this."""
        self.database.close()

    def start_campaign(
        self, *, keys_per_layer: int = 10, controls: int | None = None, cases: int = 100, seed: int = 0
    ) -> Campaign:
        """Draws what is to be judged, or returns the campaign that was started with the same sizes and seed.

        controls: in all; None: a fifth of the keys, at least 5. cases: compositions of those that `mnemoscope analyze`
        listed. Raises AnnotationError where there is another campaign: a database holds one.
        """
        asked, sampled = items.sample(
            self.atlas, keys_per_layer=keys_per_layer, controls=controls, cases=cases, seed=seed
        )
        facts = {**asked, "uid": secrets.token_hex(16), "made_at": rules.current_time()}
        with self._exclusive_transaction() as connection:
            items.store_campaign(connection, sampled, facts)
        found = self.campaign()
        assert found is not None
        if any(getattr(found, name) != value for name, value in asked.items()):
            raise AnnotationError(
                f"{self.database.name} holds a campaign already (seed {found.seed}, {found.keys_per_layer} keys per"
                f" layer, {found.controls} controls, {found.cases} cases); give another database for another campaign"
            )
        return found

    @contextmanager
    def _exclusive_transaction(self) -> Iterator[Connection]:
        """A writing transaction that begins a campaign or chooses a memory, as no other does meanwhile."""
        with self.database.writing() as connection:
            # SQLite has one writer anyway.
            if not self.database.sqlite:
                connection.exec_driver_sql("LOCK TABLE campaigns IN EXCLUSIVE MODE")
            yield connection

    def campaign(self) -> Campaign | None:
        """The campaign, or None where none was started."""
        with self.database.reading() as connection:
            row = connection.execute(select(tables.campaigns)).mappings().first()
            asked = select(func.count()).select_from(tables.items).where(tables.items.c.kind == "key")
            keys = int(connection.execute(asked).scalar_one())
        names = ("seed", "keys_per_layer", "controls", "cases", "made_at")
        return None if row is None else Campaign(**{name: row[name] for name in names}, keys=keys)

    def invite(self, name: str, *, role: str = "annotator") -> Invitation:
        """A new annotator (or host) and the secret of their link, which is shown this once."""
        rules.check_choice(role, tables.ROLES, what="role")
        annotator = Annotator(rules.check_name(name), role)
        token = secrets.token_urlsafe(24)
        with self.database.writing() as connection:
            saving.add_annotator(connection, annotator.name, role=role, token_hash=_hash_token(token))
        return Invitation(annotator, token)

    def renew(self, name: str) -> Invitation:
        """A new secret for somebody who lost theirs; the old one is void."""
        token = secrets.token_urlsafe(24)
        return Invitation(self._replace_token(name, _hash_token(token)), token)

    def withdraw(self, name: str) -> None:
        """Makes somebody's secret void; what they judged stays."""
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
        """Whose invitation this is, or None."""
        with self.database.reading() as connection:
            row = connection.execute(PEOPLE.where(annotators.c.token_hash == _hash_token(token))).first()
        return None if row is None else Annotator(*row)

    def annotators(self) -> tuple[Annotator, ...]:
        """Everybody who was invited or whose work was imported, in the order of their invitations."""
        with self.database.reading() as connection:
            return tuple(Annotator(*row) for row in connection.execute(PEOPLE.order_by(annotators.c.id)))

    def places(self, annotator: Annotator) -> tuple[Place, ...]:
        """The campaign's items in this annotator's own order, keys (controls among them) first, then compositions."""
        with self.database.reading() as connection:
            return views.list_places(connection, annotator)

    def progress(self, annotator: Annotator) -> views.Progress:
        """How far the annotator is."""
        with self.database.reading() as connection:
            places = views.list_places(connection, annotator)
            handed_in = views.has_submitted(connection, annotator)
        keys, cases = ([place.finished for place in places if place.kind == kind] for kind in ("key", "case"))
        return views.Progress(len(keys), sum(keys), len(cases), sum(cases), handed_in)

    def view(self, code: str, annotator: Annotator) -> KeyView | CaseView:
        """What the annotator sees of an item: its prefixes and their own judgements; never which memory it is."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
            if item["kind"] == "case":
                return views.case_view(connection, item, annotator)
            chosen = self.atlas.name(item["layer"], item["memory"]) if item["kind"] == "chosen" else None
            return views.key_view(connection, item, annotator, self._items.read(item), chosen)

    def view_memory(self, memory: MemoryId, annotator: Annotator) -> KeyView:
        """What somebody sees of a memory outside the campaign; stores nothing, also where nobody has chosen it yet.

        Its code is the memory's name until `choose` gives it another. Raises MemoryIdError.
        """
        found = self.atlas[memory].id
        number = self.atlas.number(found)
        with self.database.reading() as connection:
            item = items.find_item(connection, "chosen", found.layer, number)
            if item is not None:
                return views.key_view(connection, item, annotator, self._items.read(item), found)
        prefixes = self._items.read_memory(found.layer, number).prefixes
        return KeyView(str(found), prefixes, (), False, False, False, str(found))

    def choose(self, memory: MemoryId) -> str:
        """The code of a memory that somebody wants to judge, outside the campaign; raises MemoryIdError."""
        layer, number = memory.layer, self.atlas.number(memory)
        with self._exclusive_transaction() as connection:
            stored = items.find_item(connection, "chosen", layer, number)
            return items.store_chosen(connection, layer, number) if stored is None else str(stored["code"])

    def save(
        self, code: str, annotator: Annotator, *, kind: str, description: str, marks: Sequence[int],
        pattern: int | None = None, key: str | None = None,
    ) -> SavedJudgement:  # fmt: skip
        """Stores a pattern: its class, what it is, and the numbers of the prefixes that share it (at least 3).

        pattern: which of the annotator's patterns of this item is meant; None: a new one. key: the same for every try
        to store this judgement, which then is stored once.
        """
        found = rules.check_choice(kind, rules.PATTERN_KINDS, what="class"), rules.check_description(description)
        number = None if pattern is None else rules.check_pattern(pattern)
        item = self._item(code)
        ranks = self._items.read(item).ranks
        triggers = json.dumps([ranks[mark] for mark in rules.check_marks(marks, len(ranks))])
        with self._turn(item, annotator, key) as turn:
            return turn.save(number, views.State(*found, triggers))

    def retract(self, code: str, annotator: Annotator, *, pattern: int, key: str | None = None) -> SavedJudgement:
        """Takes a pattern back: it no longer counts, and its row stays."""
        number = rules.check_pattern(pattern)
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.save(number, views.NONE)

    def undo(self, code: str, annotator: Annotator, *, key: str | None = None) -> SavedJudgement:
        """Takes the latest step on this item back, then the one before it, and so on."""
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.undo()

    def finish(
        self, code: str, annotator: Annotator, *, none: bool = False, done: bool = True, key: str | None = None
    ) -> SavedJudgement:
        """Says that the item is finished; `none`: that there is no pattern; `done=False`: that it is taken up again."""
        with self._turn(self._item(code), annotator, key) as turn:
            return turn.finish(done=done, none=none)

    def judge(self, code: str, annotator: Annotator, *, verdict: str, key: str | None = None) -> SavedJudgement:
        """Calls a composition of the last layer `related` or `distant`; `none` takes the verdict back."""
        rules.check_choice(verdict, rules.VERDICTS, what="verdict")
        with self._turn(self._item(code, case=True), annotator, key) as turn:
            return turn.judge(verdict)

    def hand_in(self, annotator: Annotator, *, key: str | None = None) -> SavedJudgement:
        """Hands all work in: from then on the annotator sees what others said, and changes nothing."""
        with self._turn(saving.ALL_WORK, annotator, key) as turn:
            left = sum(not place.finished for place in views.list_places(turn.connection, annotator))
            if left:
                raise AnnotationError(f"{left} items are not finished yet; finish them before handing in")
            return turn.hand_in()

    def others(self, code: str, annotator: Annotator) -> tuple[OthersJudgement, ...]:
        """What others who have finished the item said of it; only for a host, or once the annotator has handed in."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
            if annotator.role != "host" and not views.has_submitted(connection, annotator):
                raise AnnotationError("others' judgements can be seen once you have handed in your own")
            names = [name for name, _ in connection.execute(PEOPLE.order_by(annotators.c.id)) if name != annotator.name]
            others = [views.read_others(connection, item, name, self.shown_ranks(item)) for name in names]
        return tuple(one for one in others if one is not None)

    def read_published(self, memory: MemoryId | None = None) -> pl.DataFrame:
        """The judgements that count and may be told, of all memories or one; columns of judgements/reading.py."""
        with self.database.reading() as connection:
            place = None if memory is None else (memory.layer, self.atlas.number(memory))
            rows = views.read_judgements(connection, self.database.name, place)
            return rows if views.is_over(connection) else rows.filter(~pl.col("sampled"))

    def shown_ranks(self, item: items.Row) -> tuple[int, ...]:
        """The ranks of the triggers that an item shows; a control's are its own numbers."""
        return () if item["kind"] == "case" else self._items.read(item).ranks

    @contextmanager
    def _turn(self, item: items.Row, annotator: Annotator, key: str | None) -> Iterator[Turn]:
        """The annotator's turn at the item, in a transaction of its own."""
        known = rules.judgement_key(key)
        with self.database.writing() as connection:
            yield Turn(connection, item, annotator, key=known)

    def _item(self, code: str, *, case: bool = False) -> items.Row:
        """The item, read by itself: an item never changes, and reading the atlas must not keep others waiting."""
        with self.database.reading() as connection:
            item = items.read_item(connection, code)
        if item["kind"] == "case" and not case:
            raise AnnotationError("this item is a composition; call it related or distant instead")
        if item["kind"] != "case" and case:
            raise AnnotationError("this item is no composition; mark its patterns instead")
        return item


def _hash_token(token: str) -> str:
    # A plain hash is enough: the token is 24 random bytes, which nobody can guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
