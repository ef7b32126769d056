"""The store of one atlas's annotations: what a page asks of it, one method for each; every one its own transaction.

Several stores, in threads or processes, may be open on one database at once. Paper, section 3.1.
"""

import hashlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import final

from sqlalchemy import Connection, func, select

from mnemoscope.atlas import Atlas
from mnemoscope.campaigns import annotators, sampling, saving
from mnemoscope.campaigns.database import Database, address
from mnemoscope.campaigns.items import ItemReader
from mnemoscope.campaigns.records import (
    Annotator,
    Campaign,
    CaseView,
    Invitation,
    KeyView,
    OthersJudgement,
    Pattern,
    Place,
    Progress,
    Saved,
)
from mnemoscope.errors import AnnotationError
from mnemoscope.judgements import rules
from mnemoscope.judgements.tables import campaigns, finishes, items, verdicts
from mnemoscope.memory import MemoryId


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
        self._items = ItemReader(atlas)

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
        asked, sampled = sampling.sample(
            self.atlas, keys_per_layer=keys_per_layer, controls=controls, cases=cases, seed=seed
        )
        with self.database.writing() as connection:
            self._lock_campaign(connection)
            facts = {**asked, "uid": secrets.token_hex(16), "made_at": rules.current_time()}
            sampling.store_campaign(connection, sampled, facts)
        found = self.campaign()
        if found is None or any(getattr(found, name) != value for name, value in asked.items()):
            raise AnnotationError(
                f"{self.database.name} holds a campaign already (seed {found and found.seed},"
                f" {found and found.keys_per_layer} keys per layer, {found and found.controls} controls,"
                f" {found and found.cases} cases); give another database for another campaign"
            )
        return found

    def _lock_campaign(self, connection: Connection) -> None:
        """Lets no other connection begin a campaign or choose a memory meanwhile; SQLite has one writer anyway."""
        if not self.database.sqlite:
            connection.exec_driver_sql("LOCK TABLE campaigns IN EXCLUSIVE MODE")

    def campaign(self) -> Campaign | None:
        """The campaign, or None where none was started."""
        with self.database.reading() as connection:
            row = connection.execute(select(campaigns)).mappings().first()
            asked = select(func.count()).select_from(items).where(items.c.kind == "key")
            keys = int(connection.execute(asked).scalar_one())
        names = ("seed", "keys_per_layer", "controls", "cases", "made_at")
        return None if row is None else Campaign(**{name: row[name] for name in names}, keys=keys)

    def invite(self, name: str, *, role: str = "annotator") -> Invitation:
        """A new annotator (or host) and the secret of their link, which is shown this once."""
        with self.database.writing() as connection:
            return annotators.invite(connection, name, role=role)

    def renew(self, name: str) -> Invitation:
        """A new secret for somebody who lost theirs; the old one is void."""
        with self.database.writing() as connection:
            found = annotators.renew(connection, name, withdraw=False)
        assert found is not None
        return found

    def withdraw(self, name: str) -> None:
        """Makes somebody's secret void; what they judged stays."""
        with self.database.writing() as connection:
            annotators.renew(connection, name, withdraw=True)

    def annotator(self, token: str) -> Annotator | None:
        """Whose invitation this is, or None."""
        with self.database.reading() as connection:
            return annotators.find_by_token(connection, token)

    def annotators(self) -> tuple[Annotator, ...]:
        """Everybody who was invited or whose work was imported."""
        with self.database.reading() as connection:
            return annotators.all_annotators(connection)

    def places(self, annotator: Annotator) -> tuple[Place, ...]:
        """The campaign's items in this annotator's own order, keys (controls among them) first, then compositions."""
        with self.database.reading() as connection:
            return self._places(connection, annotator)

    def _places(self, connection: Connection, annotator: Annotator) -> tuple[Place, ...]:
        uid = connection.execute(select(campaigns.c.uid)).scalar()
        rows = connection.execute(select(items.c.id, items.c.code, items.c.kind).where(items.c.kind != "chosen")).all()
        done = self._finished_items(connection, annotator)

        def order(row: tuple[int, str, str]) -> tuple[bool, str]:
            mixed = hashlib.sha256(f"{uid}:{annotator.name}:{row[1]}".encode()).hexdigest()
            return row[2] == "case", mixed

        ordered = sorted((tuple(row) for row in rows), key=order)
        return tuple(Place(code, "case" if kind == "case" else "key", id in done) for id, code, kind in ordered)

    def _finished_items(self, connection: Connection, annotator: Annotator) -> set[int]:
        """Numbers of the items that the annotator has finished."""
        found: dict[int, bool] = {}
        asked = select(finishes.c.item, finishes.c.finished).where(finishes.c.author == annotator.name)
        for item, done in connection.execute(asked.order_by(finishes.c.made_at, finishes.c.id)):
            found[item] = bool(done)
        said = select(verdicts.c.item, verdicts.c.verdict).where(verdicts.c.author == annotator.name)
        for item, verdict in connection.execute(said.order_by(verdicts.c.made_at, verdicts.c.id)):
            found[item] = verdict != "none"
        return {item for item, done in found.items() if done}

    def progress(self, annotator: Annotator) -> Progress:
        """How far the annotator is."""
        with self.database.reading() as connection:
            places = self._places(connection, annotator)
            handed_in = annotators.has_submitted(connection, annotator)
        keys, cases = ([place.finished for place in places if place.kind == kind] for kind in ("key", "case"))
        return Progress(len(keys), sum(keys), len(cases), sum(cases), handed_in)

    def view(self, code: str, annotator: Annotator) -> KeyView | CaseView:
        """What the annotator sees of an item: its prefixes and their own judgements; never which memory it is."""
        with self.database.reading() as connection:
            item = saving.read_item(connection, code)
            if item["kind"] == "case":
                texts = json.loads(item["content"])
                verdict = saving.read_verdict(connection, item["id"], annotator.name)
                return CaseView(code, texts["prefix"], texts["residual"], texts["ffn"], texts["output"], verdict)
            return self._key_view(connection, item, annotator)

    def view_memory(self, memory: MemoryId, annotator: Annotator) -> KeyView:
        """What somebody sees of a memory outside the campaign; stores nothing, also where nobody has chosen it yet.

        Its code is the memory's name until `choose` gives it another. Raises MemoryIdError.
        """
        found = self.atlas[memory].id
        with self.database.reading() as connection:
            item = saving.find_chosen_item(connection, found)
            if item is not None:
                return self._key_view(connection, item, annotator)
        prefixes = self._items.read_memory(found.layer, found.memory).prefixes
        return KeyView(str(found), prefixes, (), False, False, False, str(found))

    def _key_view(self, connection: Connection, item: saving.Item, annotator: Annotator) -> KeyView:
        known = saving.read_history(connection, item["id"], annotator.name)
        finished = saving.is_finished(connection, item["id"], annotator.name)
        shown = self._items.read(item)
        chosen = str(MemoryId(item["layer"], item["memory"])) if item["kind"] == "chosen" else None
        patterns = _patterns(known.patterns, shown.ranks)
        none = finished and not patterns
        return KeyView(item["code"], shown.prefixes, patterns, none, finished, bool(known.steps), chosen)

    def choose(self, memory: MemoryId) -> str:
        """The code of a memory that somebody wants to judge, outside the campaign; raises MemoryIdError."""
        found = self.atlas[memory].id
        with self.database.writing() as connection:
            self._lock_campaign(connection)
            stored = saving.find_chosen_item(connection, found)
            if stored is None:
                stored = sampling.Item("chosen", found.layer, found.memory, None).as_row(secrets.token_hex(16))
                connection.execute(items.insert().values(stored))
        return str(stored["code"])

    def save(
        self, code: str, annotator: Annotator, *, kind: str, description: str, marks: Sequence[int],
        pattern: int | None = None, key: str | None = None,
    ) -> Saved:  # fmt: skip
        """Stores a pattern: its class, what it is, and the numbers of the prefixes that share it (at least 3).

        pattern: which of the annotator's patterns of this item is meant; None: a new one. key: the same for every try
        to store this judgement, which then is stored once.
        """
        found = rules.check_kind(kind), rules.check_description(description)
        number = None if pattern is None else rules.check_pattern(pattern)
        item = self._key(code)
        shown = self._items.read(item).ranks
        state = (*found, saving.ranks(rules.check_marks(marks, len(shown)), shown))
        with self.database.writing() as connection:
            return saving.save(connection, item, annotator, pattern=number, state=state, key=rules.judgement_key(key))

    def retract(self, code: str, annotator: Annotator, *, pattern: int, key: str | None = None) -> Saved:
        """Takes a pattern back: it no longer counts, and its row stays."""
        number, item = rules.check_pattern(pattern), self._key(code)
        with self.database.writing() as connection:
            known = rules.judgement_key(key)
            return saving.save(connection, item, annotator, pattern=number, state=saving.NONE, key=known)

    def undo(self, code: str, annotator: Annotator, *, key: str | None = None) -> Saved:
        """Takes the latest step on this item back, then the one before it, and so on."""
        item = self._key(code)
        with self.database.writing() as connection:
            return saving.undo(connection, item, annotator, key=rules.judgement_key(key))

    def finish(
        self, code: str, annotator: Annotator, *, none: bool = False, done: bool = True, key: str | None = None
    ) -> Saved:
        """Says that the item is finished; `none`: that there is no pattern; `done=False`: that it is taken up again."""
        item = self._key(code)
        with self.database.writing() as connection:
            return saving.finish(connection, item, annotator, done=done, none=none, key=rules.judgement_key(key))

    def judge(self, code: str, annotator: Annotator, *, verdict: str, key: str | None = None) -> Saved:
        """Calls a composition of the last layer `related` or `distant`; `none` takes the verdict back."""
        if verdict not in rules.VERDICTS:
            raise AnnotationError(f"the verdict is {verdict!r}; choose one of {', '.join(rules.VERDICTS)}")
        with self.database.writing() as connection:
            item = saving.read_item(connection, code)
            if item["kind"] != "case":
                raise AnnotationError("this item is no composition; mark its patterns instead")
            return saving.judge(connection, item, annotator, verdict=verdict, key=rules.judgement_key(key))

    def hand_in(self, annotator: Annotator, *, key: str | None = None) -> Saved:
        """Hands all work in: from then on the annotator sees what others said, and changes nothing."""
        with self.database.writing() as connection:
            annotators.lock_annotator(connection, annotator)
            left = sum(not place.finished for place in self._places(connection, annotator))
            if left:
                raise AnnotationError(f"{left} items are not finished yet; finish them before handing in")
            return saving.hand_in(connection, annotator, key=rules.judgement_key(key))

    def others(self, code: str, annotator: Annotator) -> tuple[OthersJudgement, ...]:
        """What others who have finished the item said of it; only for a host, or once the annotator has handed in."""
        with self.database.reading() as connection:
            item = saving.read_item(connection, code)
            if annotator.role != "host" and not annotators.has_submitted(connection, annotator):
                raise AnnotationError("others' judgements can be seen once you have handed in your own")
            names = [person.name for person in annotators.all_annotators(connection) if person.name != annotator.name]
            return tuple(said for name in names if (said := self._read_others(connection, item, name)) is not None)

    def _read_others(self, connection: Connection, item: saving.Item, name: str) -> OthersJudgement | None:
        if item["kind"] == "case":
            verdict = saving.read_verdict(connection, item["id"], name)
            return None if verdict is None else OthersJudgement(name, (), verdict)
        known = saving.read_history(connection, item["id"], name).patterns
        seen = bool(known) if item["kind"] == "chosen" else saving.is_finished(connection, item["id"], name)
        return OthersJudgement(name, _patterns(known, self._items.read(item).ranks)) if seen else None

    def shown_ranks(self, item: saving.Item) -> tuple[int, ...]:
        """The ranks of the triggers that an item shows; a control's are its own numbers."""
        return self._items.read(item).ranks

    def _key(self, code: str) -> saving.Item:
        """The item, read by itself: an item never changes, and reading the atlas must not keep others waiting."""
        with self.database.reading() as connection:
            item = saving.read_item(connection, code)
        if item["kind"] == "case":
            raise AnnotationError("this item is a composition; call it related or distant instead")
        return item


def _patterns(known: dict[int, saving.State], shown: Sequence[int]) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(number, kind, description, saving.marks(triggers, shown))
        for number, (kind, description, triggers) in known.items()
    )
