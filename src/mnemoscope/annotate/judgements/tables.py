"""The tables of a database of annotations: the schema of a new SQLite file (tables.sql), and how a row is added.

`judgements`, `verdicts` and `finishes` are append-only: triggers in the database refuse updates and deletions by any
client. reading.py also reads files with fewer tables, written by hand (docs/patterns.md).
"""

import sqlite3
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

ROLES = ("annotator", "host", "model")
"""All but a model are people."""
GROWING = ("judgements", "verdicts", "finishes")
# INSERT OR REPLACE deletes the conflicting row without a trigger on DELETE, so the third trigger refuses it.
_ONLY_GROWS = """
CREATE TRIGGER {0}_no_update BEFORE UPDATE ON {0} BEGIN {1} END;
CREATE TRIGGER {0}_no_delete BEFORE DELETE ON {0} BEGIN {1} END;
CREATE TRIGGER {0}_no_replace BEFORE INSERT ON {0}
WHEN EXISTS (SELECT 1 FROM {0} WHERE id = NEW.id OR (author = NEW.author AND key = NEW.key)) BEGIN {1} END;
"""
_REFUSE = "SELECT RAISE(ABORT, '{0} only grows: nothing in it is changed or deleted');"
_TABLES = files("mnemoscope.annotate.judgements").joinpath("tables.sql").read_text(encoding="utf-8")
SCHEMA = f"\n{_TABLES}" + "".join(_ONLY_GROWS.format(name, _REFUSE.format(name)) for name in GROWING)


def create(connection: sqlite3.Connection) -> None:
    """Creates all tables and triggers inside the open transaction, which `executescript` would commit first."""
    for statement in SCHEMA.split(";\n"):
        connection.execute(statement)


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
