"""Connections that read an index: one for every thread that asks at the same time, kept for the next.

The file that a connection opens never changes, since a new index is another file under the same name.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mnemoscope.search.layout import FULL_TEXT, PLAIN_TABLES

_KEPT = 8


class Connections:
    """A few open connections to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._free: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        with self._lock:
            if self._closed:
                raise ValueError("the index is closed")
            database = self._free.pop() if self._free else None
        if database is None:
            database = connect(self.path)
        try:
            yield database
        finally:
            with self._lock:
                keep = not self._closed and len(self._free) < _KEPT
                if keep:
                    self._free.append(database)
            if not keep:
                database.close()

    def close(self) -> None:
        """Closes what is free now, and the others when they come back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for database in free:
            database.close()


def connect(path: Path) -> sqlite3.Connection:
    """A connection that reads only; the file it opens never changes, since a new index is another file."""
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA query_only=1")
    database.execute("PRAGMA cache_size=-16384")
    return database


def is_fresh(path: Path, about: dict[str, str]) -> bool:
    """Whether `path` is a whole index that says `about`; False for whatever else lies there."""
    try:
        size = path.stat().st_size
        with closing(connect(path)) as database:
            said = dict(database.execute("SELECT name, said FROM about").fetchall())
            pages, page = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            for table in PLAIN_TABLES:
                database.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
            for table in FULL_TEXT:
                database.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH ? LIMIT 1", ('"a"',)).fetchall()
    except (OSError, sqlite3.Error, UnicodeError):
        return False
    return pages * page == size and all(said.get(name) == value for name, value in about.items())
