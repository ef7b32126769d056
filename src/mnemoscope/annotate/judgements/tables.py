"""The tables of a database of annotations: the schema of a new SQLite file, and how a row is added.

`judgements`, `verdicts` and `finishes` are append-only: triggers in the database refuse updates and deletions by any
client. reading.py also reads files with fewer tables, written by hand (docs/patterns.md).
"""

import sqlite3
from collections.abc import Mapping
from typing import Any

ROLES = ("annotator", "host", "model")
"""All but a model are people."""
GROWING = ("judgements", "verdicts", "finishes")
_TABLES = """
-- One row. `atlas` is the sha256 of the manifest of the atlas that all judgements are about.
CREATE TABLE annotations_version (version INTEGER NOT NULL, atlas TEXT NOT NULL);

-- At most one row. `uid` is secret: the codes of the items are derived from it.
CREATE TABLE campaigns (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  uid TEXT NOT NULL,
  seed INTEGER NOT NULL,
  keys_per_layer INTEGER NOT NULL,
  controls INTEGER NOT NULL,
  cases INTEGER NOT NULL,
  made_at TEXT NOT NULL
);

-- `folded` is the case-folded name, `token_hash` the sha256 of the invitation's token, null after its withdrawal.
CREATE TABLE annotators (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  folded TEXT NOT NULL UNIQUE,
  role TEXT NOT NULL CHECK (role IN ('annotator', 'host', 'model')),
  token_hash TEXT UNIQUE,
  made_at TEXT NOT NULL
);

-- `memory` is a control's own number or a case's prefix; `content` is JSON (a control's prefixes, a case's texts).
-- `sheet_key` and `sheet_case` were judged outside the campaign, on a sheet (campaigns/sheet.py).
CREATE TABLE items (
  id INTEGER PRIMARY KEY,
  code TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL CHECK (kind IN ('key', 'control', 'chosen', 'case', 'sheet_key', 'sheet_case')),
  layer INTEGER NOT NULL,
  memory INTEGER NOT NULL,
  content TEXT NOT NULL,
  UNIQUE (kind, layer, memory)
);

-- The latest row of an author on a pattern counts.
CREATE TABLE judgements (
  id INTEGER PRIMARY KEY,
  author TEXT NOT NULL REFERENCES annotators (name),
  made_at TEXT NOT NULL,
  layer INTEGER NOT NULL,
  memory INTEGER NOT NULL,
  control INTEGER NOT NULL CHECK (control IN (0, 1)),
  pattern INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('shallow', 'semantic', 'both', 'none')),
  description TEXT NOT NULL,
  triggers TEXT NOT NULL,
  item INTEGER NOT NULL REFERENCES items (id),
  undoes TEXT,
  key TEXT NOT NULL,
  UNIQUE (author, key)
);
CREATE INDEX judgements_of_item ON judgements (item, author);

CREATE TABLE verdicts (
  id INTEGER PRIMARY KEY,
  author TEXT NOT NULL REFERENCES annotators (name),
  made_at TEXT NOT NULL,
  item INTEGER NOT NULL REFERENCES items (id),
  verdict TEXT NOT NULL CHECK (verdict IN ('related', 'distant', 'none')),
  key TEXT NOT NULL,
  UNIQUE (author, key)
);
CREATE INDEX verdicts_on_item ON verdicts (item, author);

-- One row each time an author finishes or resumes an item; without an item, all work was handed in.
CREATE TABLE finishes (
  id INTEGER PRIMARY KEY,
  author TEXT NOT NULL REFERENCES annotators (name),
  made_at TEXT NOT NULL,
  item INTEGER REFERENCES items (id),
  finished INTEGER NOT NULL CHECK (finished IN (0, 1)),
  key TEXT NOT NULL,
  UNIQUE (author, key)
);
CREATE INDEX finishes_of_item ON finishes (item, author);
"""
# INSERT OR REPLACE deletes the conflicting row without a trigger on DELETE, so the third trigger refuses it.
_ONLY_GROWS = """
CREATE TRIGGER {0}_no_update BEFORE UPDATE ON {0} BEGIN {1} END;
CREATE TRIGGER {0}_no_delete BEFORE DELETE ON {0} BEGIN {1} END;
CREATE TRIGGER {0}_no_replace BEFORE INSERT ON {0}
WHEN EXISTS (SELECT 1 FROM {0} WHERE id = NEW.id OR (author = NEW.author AND key = NEW.key)) BEGIN {1} END;
"""
_REFUSE = "SELECT RAISE(ABORT, '{0} only grows: nothing in it is changed or deleted');"
SCHEMA = _TABLES + "".join(_ONLY_GROWS.format(name, _REFUSE.format(name)) for name in GROWING)


def create(connection: sqlite3.Connection) -> None:
    """Creates all tables and triggers inside the open transaction, which `executescript` would commit first."""
    for statement in SCHEMA.split(";\n"):
        connection.execute(statement)


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
