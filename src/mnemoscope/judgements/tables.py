"""The tables of a database of annotations, and the rule that what people said is never changed or deleted.

The same tables on SQLite and PostgreSQL. Three of them only ever grow (`judgements`, `verdicts`, `finishes`): triggers
inside the database refuse anything else, whoever asks. Opens no database. A file written by hand may hold less, which
reading.py reads too (docs/patterns.md).
"""

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from mnemoscope.judgements.rules import ITEM_KINDS, KINDS, VERDICTS

ROLES = ("annotator", "host")

metadata = MetaData()


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})")


version = Table(
    "annotations_version",
    metadata,
    Column("version", Integer, nullable=False),
    Column("atlas", String(64), nullable=False),
)
"""One row: the version, and the sha256 of the manifest of the atlas that all judgements are about."""

campaigns = Table(
    "campaigns",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("uid", String(64), nullable=False),
    Column("seed", Integer, nullable=False),
    Column("keys_per_layer", Integer, nullable=False),
    Column("controls", Integer, nullable=False),
    Column("cases", Integer, nullable=False),
    Column("made_at", String(40), nullable=False),
)
"""At most one row: a database holds one campaign. `uid` is secret, since it makes the items' codes."""

annotators = Table(
    "annotators",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(80), nullable=False, unique=True),
    Column("folded", String(240), nullable=False, unique=True),
    Column("role", String(20), _one_of("role", ROLES), nullable=False),
    Column("token_hash", String(64), unique=True),
    Column("made_at", String(40), nullable=False),
)
"""People; `folded` is the name without case, `token_hash` the sha256 of the invitation's token, null once withdrawn."""

items = Table(
    "items",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("code", String(40), nullable=False, unique=True),
    Column("kind", String(20), _one_of("kind", ITEM_KINDS), nullable=False),
    Column("layer", Integer, nullable=False),
    Column("memory", Integer, nullable=False),
    Column("content", Text, nullable=False),
    UniqueConstraint("kind", "layer", "memory"),
)
"""What is judged. `memory` is a control's own number and a case's prefix; `content` is JSON (a control's prefixes, a
case's texts)."""

judgements = Table(
    "judgements",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("author", String(80), ForeignKey("annotators.name"), nullable=False),
    Column("made_at", String(40), nullable=False),
    Column("layer", Integer, nullable=False),
    Column("memory", Integer, nullable=False),
    Column("control", Integer, CheckConstraint("control IN (0, 1)"), nullable=False),
    Column("pattern", Integer, nullable=False),
    Column("kind", String(20), _one_of("kind", KINDS), nullable=False),
    Column("description", Text, nullable=False),
    Column("triggers", Text, nullable=False),
    Column("item", Integer, ForeignKey("items.id"), nullable=False),
    Column("key", String(80), nullable=False),
    Column("undoes", String(80)),
    UniqueConstraint("author", "key"),
    Index("judgements_of_item", "item", "author"),
)
"""One row for everything that anybody ever said about a pattern of a key; the latest of an author counts."""

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("author", String(80), ForeignKey("annotators.name"), nullable=False),
    Column("made_at", String(40), nullable=False),
    Column("item", Integer, ForeignKey("items.id"), nullable=False),
    Column("verdict", String(20), _one_of("verdict", VERDICTS), nullable=False),
    Column("key", String(80), nullable=False),
    UniqueConstraint("author", "key"),
    Index("verdicts_on_item", "item", "author"),
)
"""One row for every verdict on a composition; the latest of an author counts."""

finishes = Table(
    "finishes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("author", String(80), ForeignKey("annotators.name"), nullable=False),
    Column("made_at", String(40), nullable=False),
    Column("item", Integer, ForeignKey("items.id")),
    Column("finished", Integer, CheckConstraint("finished IN (0, 1)"), nullable=False),
    Column("key", String(80), nullable=False),
    UniqueConstraint("author", "key"),
    Index("finishes_of_item", "item", "author"),
)
"""One row each time an author finishes an item or takes it up again; without an item: all work was handed in."""

GROWING = (judgements, verdicts, finishes)
"""The tables that only ever grow."""


def create(connection: Connection) -> None:
    """Makes every table and the triggers that keep them from being changed; nothing may be there yet."""
    metadata.create_all(connection, checkfirst=False)
    statements = _sqlite() if connection.dialect.name == "sqlite" else _postgresql()
    for statement in statements:
        connection.exec_driver_sql(statement)


def _sqlite() -> list[str]:
    found = []
    for table in GROWING:
        refuse = f"BEGIN SELECT RAISE(ABORT, '{table.name} only grows: nothing in it is changed or deleted'); END"
        for what in ("UPDATE", "DELETE"):
            found.append(f"CREATE TRIGGER {table.name}_no_{what.lower()} BEFORE {what} ON {table.name} {refuse}")
        # INSERT OR REPLACE deletes the row that is in its way, and no trigger on DELETE is told.
        found.append(
            f"CREATE TRIGGER {table.name}_no_replace BEFORE INSERT ON {table.name} WHEN EXISTS (SELECT 1 FROM"
            f" {table.name} WHERE id = NEW.id OR (author = NEW.author AND key = NEW.key)) {refuse}"
        )
    return found


def _postgresql() -> list[str]:
    found = [
        "CREATE FUNCTION annotations_only_grow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION '%% only grows: nothing in it is changed or deleted', TG_TABLE_NAME; END $$"
    ]
    for table in GROWING:
        for name, what in (("row", "UPDATE OR DELETE"), ("all", "TRUNCATE")):
            found.append(
                f"CREATE TRIGGER {table.name}_only_grows_{name} BEFORE {what} ON {table.name}"
                " FOR EACH STATEMENT EXECUTE FUNCTION annotations_only_grow()"
            )
    return found
