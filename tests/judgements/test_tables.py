"""The tables of a new database: what they refuse to hold, and that what people said is never changed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.annotate.judgements import rules, tables

ANNOTATOR = "INSERT INTO annotators VALUES ({0}, 'Ada{0}', 'ada{0}', 'annotator', 'hash{0}', 'now')"
ITEM = "INSERT INTO items VALUES ({0}, 'code{0}', 'key', 0, {0}, '')"
JUDGEMENT = (
    "INSERT INTO judgements (author, made_at, layer, memory, control, pattern, kind, description, triggers, item, key)"
    " VALUES ('Ada1', 'now', 0, 1, 0, 0, 'both', '', '[]', 1, '{0}')"
)
VERDICT = "INSERT INTO verdicts (author, made_at, item, verdict, key) VALUES ('Ada1', 'now', 1, 'related', '{0}')"
FINISH = "INSERT INTO finishes (author, made_at, item, finished, key) VALUES ('Ada1', 'now', 1, 1, '{0}')"
GROWING = {"judgements": JUDGEMENT, "verdicts": VERDICT, "finishes": FINISH}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """New tables with one author, one item, and one row that the author said in each table."""
    with closing(sqlite3.connect(tmp_path / "annotations.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        tables.create(connection)
        for statement in (ANNOTATOR.format(1), ITEM.format(1), *(one.format("first") for one in GROWING.values())):
            connection.execute(statement)
        yield connection


def refuse(database: sqlite3.Connection, statement: str, said: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=said):
        database.execute(statement)


@pytest.mark.parametrize("table", GROWING)
def test_what_was_said_is_neither_changed_nor_deleted(database: sqlite3.Connection, table: str) -> None:
    grows = f"{table} only grows: nothing in it is changed or deleted"
    refuse(database, f"UPDATE {table} SET made_at = 'later'", grows)
    refuse(database, f"DELETE FROM {table}", grows)
    # The same key of the same author, and the same number: either would take the place of the first row.
    refuse(database, GROWING[table].format("first").replace("INSERT", "INSERT OR REPLACE"), grows)
    other = GROWING[table].format("second")
    refuse(database, other.replace("(author", "(id, author").replace("VALUES (", "VALUES (1, "), grows)
    database.execute(other)
    stored = database.execute(f"SELECT id, key FROM {table} ORDER BY id").fetchall()
    assert stored == [(1, "first"), (2, "second")]


def test_another_author_may_use_the_same_key(database: sqlite3.Connection) -> None:
    database.execute(ANNOTATOR.format(2))
    for statement in GROWING.values():
        database.execute(statement.format("first").replace("Ada1", "Ada2"))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (JUDGEMENT.replace("'both'", "'deep'"), "CHECK"),
        (JUDGEMENT.replace("1, 0, 0, 'both'", "1, 2, 0, 'both'"), "CHECK"),
        (JUDGEMENT.replace("1, 0, 0, 'both'", "1, -1, 0, 'both'"), "CHECK"),
        (JUDGEMENT.replace("1, 0, 0, 'both'", "1, 0, NULL, 'both'"), "NOT NULL"),
        (VERDICT.replace("'related'", "'near'"), "CHECK"),
        (FINISH.replace("1, 1, ", "1, 2, "), "CHECK"),
        (JUDGEMENT.replace("'Ada1'", "'Eve'"), "FOREIGN KEY"),
        (VERDICT.replace("'now', 1,", "'now', 2,"), "FOREIGN KEY"),
        (ITEM.format(2).replace("'key'", "'row'"), "CHECK"),
        (ITEM.format(2).replace("code2", "code1"), "UNIQUE"),
        ("INSERT INTO items VALUES (2, 'code2', 'key', 0, 1, '')", "UNIQUE"),
        ("INSERT INTO items VALUES (2, 'code2', 'key', 0, 2, NULL)", "NOT NULL"),
        ("INSERT INTO annotators VALUES (2, 'Ada1', 'b', 'host', NULL, 'now')", "UNIQUE"),
        ("INSERT INTO annotators VALUES (2, 'Ben', 'ada1', 'host', NULL, 'now')", "UNIQUE"),
        ("INSERT INTO annotators VALUES (2, 'Ben', 'ben', 'host', 'hash1', 'now')", "UNIQUE"),
        ("INSERT INTO annotators VALUES (2, 'Ben', 'ben', 'guest', NULL, 'now')", "CHECK"),
        ("INSERT INTO annotators VALUES (2, NULL, 'ben', 'host', NULL, 'now')", "NOT NULL"),
        ("INSERT INTO annotators VALUES (2, 'Ben', NULL, 'host', NULL, 'now')", "NOT NULL"),
        ("INSERT INTO campaigns VALUES (2, 'uid', 0, 1, 1, 1, 'now')", "CHECK"),
        ("INSERT INTO campaigns VALUES (1, 'uid', NULL, 1, 1, 1, 'now')", "NOT NULL"),
        ("INSERT INTO annotations_version VALUES (NULL, 'atlas')", "NOT NULL"),
        ("INSERT INTO annotations_version VALUES (1, NULL)", "NOT NULL"),
    ],
)
def test_what_cannot_be_is_not_stored(database: sqlite3.Connection, statement: str, said: str) -> None:
    refuse(database, statement.format("other"), said)


def test_what_may_lack_a_value(database: sqlite3.Connection) -> None:
    """Withdrawn invitations have no token, however many; all work is handed in without an item; nothing is undone."""
    for statement in (
        "INSERT INTO annotators VALUES (2, 'Ben', 'ben', 'host', NULL, 'now')",
        "INSERT INTO annotators VALUES (3, 'Cleo', 'cleo', 'annotator', NULL, 'now')",
        FINISH.format("other").replace("'now', 1, 1", "'now', NULL, 0"),
        "INSERT INTO campaigns VALUES (1, 'uid', 0, 1, 1, 1, 'now')",
    ):
        database.execute(statement)
    assert database.execute("SELECT undoes FROM judgements").fetchall() == [(None,)]


def test_all_kinds_and_verdicts_of_the_rules_are_stored(database: sqlite3.Connection) -> None:
    for number, kind in enumerate(rules.ITEM_KINDS, 2):
        database.execute(ITEM.format(number).replace("'key'", f"'{kind}'"))
    for kind in rules.JUDGED_KINDS:
        database.execute(JUDGEMENT.format(kind).replace("'both'", f"'{kind}'"))
    for verdict in rules.VERDICTS:
        database.execute(VERDICT.format(verdict).replace("'related'", f"'{verdict}'"))
    for number, role in enumerate(tables.ROLES, 2):
        database.execute(ANNOTATOR.format(number).replace("'annotator'", f"'{role}'"))


def test_the_database_is_made_once(database: sqlite3.Connection) -> None:
    with pytest.raises(Exception, match="already exists"):
        tables.create(database)
