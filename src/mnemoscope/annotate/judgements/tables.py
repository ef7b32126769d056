"""The tables of a database of annotations, on SQLite and PostgreSQL.

`judgements`, `verdicts` and `finishes` are append-only: triggers in the database refuse updates and deletions by any
client. reading.py also reads files with fewer tables, written by hand (docs/patterns.md).
"""

from functools import partial
from typing import Any

from sqlalchemy import CheckConstraint, Column, Connection, ForeignKey, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.schema import UniqueConstraint

from mnemoscope.annotate.judgements.rules import ITEM_KINDS, JUDGED_KINDS, VERDICTS

ROLES = ("annotator", "host")

metadata = MetaData()
_not_null = partial(Column[Any], nullable=False)


def _one_of(name: str, values: tuple[str, ...]) -> Column[Any]:
    allowed = CheckConstraint(f"{name} IN ({', '.join(repr(value) for value in values)})")
    return _not_null(name, String(20), allowed)


def _flag(name: str) -> Column[Any]:
    return _not_null(name, Integer, CheckConstraint(f"{name} IN (0, 1)"))


def _events(name: str, index: str, *own: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True),
        _not_null("author", String(80), ForeignKey("annotators.name")),
        _not_null("made_at", String(40)),
        *own,
        _not_null("key", String(80)),
        UniqueConstraint("author", "key"),
        Index(index, "item", "author"),
    )


version = Table("annotations_version", metadata, _not_null("version", Integer), _not_null("atlas", String(64)))
"""One row; `atlas` is the sha256 of the manifest of the atlas that all judgements are about."""

campaigns = Table(
    "campaigns",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    _not_null("uid", String(64)),
    *(_not_null(name, Integer) for name in ("seed", "keys_per_layer", "controls", "cases")),
    _not_null("made_at", String(40)),
)
"""At most one row. `uid` is secret: the items' codes are derived from it."""

annotators = Table(
    "annotators",
    metadata,
    Column("id", Integer, primary_key=True),
    _not_null("name", String(80), unique=True),
    _not_null("folded", String(240), unique=True),
    _one_of("role", ROLES),
    Column("token_hash", String(64), unique=True),
    _not_null("made_at", String(40)),
)
"""`folded` is the case-folded name, `token_hash` the sha256 of the invitation's token, null after its withdrawal."""

items = Table(
    "items",
    metadata,
    Column("id", Integer, primary_key=True),
    _not_null("code", String(40), unique=True),
    _one_of("kind", ITEM_KINDS),
    _not_null("layer", Integer),
    _not_null("memory", Integer),
    _not_null("content", Text),
    UniqueConstraint("kind", "layer", "memory"),
)
"""`memory` is a control's own number or a case's prefix; `content` is JSON (a control's prefixes, a case's texts)."""

judgements = _events(
    "judgements",
    "judgements_of_item",
    _not_null("layer", Integer),
    _not_null("memory", Integer),
    _flag("control"),
    _not_null("pattern", Integer),
    _one_of("kind", JUDGED_KINDS),
    _not_null("description", Text),
    _not_null("triggers", Text),
    _not_null("item", Integer, ForeignKey("items.id")),
    Column("undoes", String(80)),
)
"""The latest row of an author on a pattern counts."""

verdicts = _events(
    "verdicts",
    "verdicts_on_item",
    _not_null("item", Integer, ForeignKey("items.id")),
    _one_of("verdict", VERDICTS),
)

finishes = _events("finishes", "finishes_of_item", Column("item", Integer, ForeignKey("items.id")), _flag("finished"))
"""One row each time an author finishes or resumes an item; without an item, all work was handed in."""

GROWING = (judgements, verdicts, finishes)


def create(connection: Connection) -> None:
    """Creates all tables and triggers. Raises if one exists."""
    metadata.create_all(connection, checkfirst=False)
    statements = _sqlite() if connection.dialect.name == "sqlite" else _postgresql()
    for statement in statements:
        connection.exec_driver_sql(statement)


def _sqlite() -> list[str]:
    statements = []
    for table in GROWING:
        refuse = f"BEGIN SELECT RAISE(ABORT, '{table.name} only grows: nothing in it is changed or deleted'); END"
        for what in ("UPDATE", "DELETE"):
            statements.append(f"CREATE TRIGGER {table.name}_no_{what.lower()} BEFORE {what} ON {table.name} {refuse}")
        # INSERT OR REPLACE deletes the conflicting row without a trigger on DELETE.
        statements.append(
            f"CREATE TRIGGER {table.name}_no_replace BEFORE INSERT ON {table.name} WHEN EXISTS (SELECT 1 FROM"
            f" {table.name} WHERE id = NEW.id OR (author = NEW.author AND key = NEW.key)) {refuse}"
        )
    return statements


def _postgresql() -> list[str]:
    statements = [
        "CREATE FUNCTION annotations_only_grow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION '%% only grows: nothing in it is changed or deleted', TG_TABLE_NAME; END $$"
    ]
    for table in GROWING:
        for name, what in (("row", "UPDATE OR DELETE"), ("all", "TRUNCATE")):
            statements.append(
                f"CREATE TRIGGER {table.name}_only_grows_{name} BEFORE {what} ON {table.name}"
                " FOR EACH STATEMENT EXECUTE FUNCTION annotations_only_grow()"
            )
    return statements
