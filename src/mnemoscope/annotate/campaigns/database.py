"""Opens the SQLite file of annotations, by default inside the atlas, and turns its errors into one line."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from mnemoscope.annotate.judgements import tables
from mnemoscope.annotate.judgements.reading import ANNOTATIONS, VERSION, columns_of
from mnemoscope.errors import AnnotationError, OptionError

WAIT_SECONDS = 30
_TABLES = {"annotations_version", "campaigns", "annotators", "items", *tables.GROWING}
_ADVICE = {
    ("SQLITE_FULL", "SQLITE_IOERR"): "make room on the disk, then save again",
    ("SQLITE_BUSY", "SQLITE_LOCKED"): "another process is writing; try again",
    ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM"): "make it writable, or choose another",
    ("SQLITE_NOTADB", "SQLITE_CORRUPT"): "restore it from a copy",
    ("SQLITE_CONSTRAINT_CHECK",): "an older version made the file; export it, and import that into a new one",
    ("SQLITE_CONSTRAINT_TRIGGER",): "judgements are never changed; save a new one",
}


@final
class Database:
    """`reading()` and `writing()` yield a connection inside a transaction. Threads may use it at once."""

    def __init__(self, path: Path, *, atlas: str) -> None:
        """`atlas` is the sha256 of its manifest."""
        self.path = path
        self.atlas = atlas
        # Opening and closing a connection for each transaction would write the whole log into the file each time.
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        # Threads of one process wait here, since SQLite's waiting sleeps and is unordered.
        self._turn = threading.Lock()
        try:
            with self.writing() as connection:
                self._create_or_check(connection)
            self._enable_write_ahead_log()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """A transaction that is under way ends undisturbed."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._plain_errors("read"), self._connection() as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that reads first would fail to write if another one had written in between, so it begins as a
        writer: no other one writes at the same time.
        """
        with self._plain_errors("stored"), self._turn, self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            connection.rollback()  # whatever was not committed
            self._idle.append(connection)
            if self._closed:
                self.close()

    def _connect(self) -> sqlite3.Connection:
        # Absolute, since `:memory:` is no file to SQLite.
        path = self.path.absolute()
        connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            connection.executescript("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def _plain_errors(self, done: str) -> Iterator[None]:
        """Raises AnnotationError for a database error: one line with reason and remedy."""
        try:
            yield
        except sqlite3.Error as error:
            code, reason = getattr(error, "sqlite_errorname", ""), " ".join(str(error).split())
            advice = next((advice for codes, advice in _ADVICE.items() if code.startswith(codes)), "try again")
            raise AnnotationError(f"{self.path}: nothing was {done} ({reason}); {advice}") from error

    def _create_or_check(self, connection: sqlite3.Connection) -> None:
        present = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if present & _TABLES:
            self._check(connection, missing=_TABLES - present)
            return
        if present:
            raise AnnotationError(f"{self.path} is not a database of annotations; choose another file")
        tables.create(connection)
        tables.insert(connection, "annotations_version", {"version": VERSION, "atlas": self.atlas})

    def _enable_write_ahead_log(self) -> None:
        """Lets readers and a writer work at once. The setting is permanent, so the file must be known to hold
        annotations. SQLite does not wait here for other processes, so the statement is retried.
        """
        until = time.monotonic() + WAIT_SECONDS
        with self._plain_errors("stored"), self._turn, self._connection() as connection:
            while True:
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                        raise
                time.sleep(0.01)

    def _check(self, connection: sqlite3.Connection, *, missing: set[str]) -> None:
        name, atlas = self.path, self.atlas
        if "annotations_version" in missing:
            raise AnnotationError(f"{name} holds tables of annotations, but not their version; restore it from a copy")
        versions = [version for (version,) in connection.execute("SELECT version FROM annotations_version")]
        if versions != [VERSION]:
            shown = " and ".join(map(str, versions)) or "none"
            raise AnnotationError(
                f"{name} holds annotations of version {shown}, this package reads version {VERSION};"
                " use the package that wrote it, or another database"
            )
        if missing or "atlas" not in columns_of(connection, "annotations_version"):
            lacking = ", ".join(sorted(missing)) or "the atlas's hash"
            raise AnnotationError(f"{name} was not made by a campaign (it lacks {lacking}); choose another database")
        ((owner,),) = connection.execute("SELECT atlas FROM annotations_version")
        if owner != atlas:
            raise AnnotationError(
                f"{name} holds judgements of another atlas (manifest {str(owner)[:12]}, this one is {atlas[:12]});"
                " give the atlas it belongs to, or another database"
            )
        for check in ("PRAGMA quick_check(1)", "PRAGMA foreign_key_check"):
            problem = connection.execute(check).fetchone()
            if problem is not None and problem[0] != "ok":
                what = " ".join(" ".join(map(str, problem)).split())
                raise AnnotationError(f"{name} is damaged ({what}); restore it from a copy")


def annotations_file(given: str | Path | None, folder: Path) -> Path:
    """The file of annotations, by default in the atlas's `folder`."""
    if given is None:
        path = folder / ANNOTATIONS
        if path.is_symlink():
            # The atlas may be untrusted, and writing through its link would write anywhere.
            raise AnnotationError(f"{path} is a link; name the file that it leads to with --annotations")
    else:
        if "://" in str(given):  # not shown: it may hold a password
            raise OptionError("annotations are kept in a file, not at an address; give the path of a file")
        path = Path(given)
    if path.is_dir():
        raise AnnotationError(f"{path} is a folder; name a file for the annotations")
    if not path.parent.is_dir():
        raise AnnotationError(f"{path.parent} is not a folder, so {path.name} cannot be made there; make it first")
    return path
