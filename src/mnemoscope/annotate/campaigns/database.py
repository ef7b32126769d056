"""Opens the database of annotations, by default an SQLite file inside the atlas, and turns its errors into one line."""

import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, final

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from mnemoscope.annotate.campaigns.kinds import check_kind
from mnemoscope.annotate.judgements import tables
from mnemoscope.annotate.judgements.reading import ANNOTATIONS, VERSION
from mnemoscope.errors import AnnotationError

WAIT_SECONDS = 30
_CONNECT_SECONDS = 10
_LOCK = 6_364_136_223
"""PostgreSQL's advisory lock while tables are created."""


@final
class Database:
    """`reading()` and `writing()` yield a connection inside a transaction."""

    def __init__(self, url: URL, *, atlas: str) -> None:
        """`atlas` is the sha256 of its manifest. Raises AnnotationError."""
        self.url = url
        self.atlas = atlas
        self.name = format_address(url)
        self.sqlite = url.get_backend_name() == "sqlite"
        self.engine = _engine(url)
        # Threads of one process wait here, since SQLite's waiting sleeps and is unordered.
        self._turn: AbstractContextManager[Any] = threading.Lock() if self.sqlite else nullcontext()
        try:
            self._open()
            if self.sqlite:
                self._enable_write_ahead_log()
        except BaseException:
            self.engine.dispose()
            raise

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._plain_errors("read"), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """`alone`: no other transaction with `alone` runs at the same time."""
        engine = self.engine.execution_options(writing=True)
        with self._plain_errors("stored"), self._turn, engine.begin() as connection:
            if alone and not self.sqlite:  # SQLite has one writer anyway
                connection.exec_driver_sql("LOCK TABLE campaigns IN EXCLUSIVE MODE")
            yield connection

    @contextmanager
    def _plain_errors(self, done: str) -> Iterator[None]:
        """Raises AnnotationError for a database error: one line with reason and remedy, without passwords."""
        try:
            yield
        except PoolTimeout as error:
            raise AnnotationError(f"{self.name}: nothing was {done}: too many people at once; try again") from error
        except (DBAPIError, sqlite3.Error) as error:
            original = error.orig if isinstance(error, DBAPIError) else error
            lines = str(original).strip().splitlines() or [type(original).__name__]
            reason = lines[0].strip()
            named = (values for name, values in self.url.normalized_query.items() if "password" in name)
            for secret in filter(None, [str(self.url.password or ""), *chain.from_iterable(named)]):
                reason = reason.replace(secret, "***")
            code = getattr(original, "sqlite_errorname", "") or getattr(original, "sqlstate", "") or ""
            advice = next((text for pattern, text in _ADVICE if re.search(pattern, f"{code} {reason}")), "try again")
            raise AnnotationError(f"{self.name}: nothing was {done} ({reason}); {advice}") from error

    def _open(self) -> None:
        with self.writing() as connection:
            if not self.sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
            present, ours = set(inspect(connection).get_table_names()), set(tables.metadata.tables)
            if not present & ours:
                if present and self.sqlite:
                    raise AnnotationError(f"{self.name} is not a database of annotations; choose another file")
                tables.create(connection)
                connection.execute(tables.version.insert().values(version=VERSION, atlas=self.atlas))
                return
            self._check(connection, missing=ours - present)

    def _enable_write_ahead_log(self) -> None:
        """Lets readers and a writer work at once. The setting is permanent, so the file must be known to hold
        annotations. SQLite does not wait here for other processes, so the statement is retried.
        """
        until = time.monotonic() + WAIT_SECONDS
        with self._plain_errors("stored"), self._turn, closing(self.engine.raw_connection()) as connection:
            while True:
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                        raise
                time.sleep(0.01)

    def _check(self, connection: Connection, *, missing: set[str]) -> None:
        name, atlas = self.name, self.atlas
        if "annotations_version" in missing:
            raise AnnotationError(f"{name} holds tables of annotations, but not their version; restore it from a copy")
        versions = connection.execute(select(tables.version.c.version)).scalars().all()
        if list(versions) != [VERSION]:
            shown = " and ".join(map(str, versions)) or "none"
            raise AnnotationError(
                f"{name} holds annotations of version {shown}, this package reads version {VERSION};"
                " use the package that wrote it, or another database"
            )
        have = {column["name"] for column in inspect(connection).get_columns("annotations_version")}
        if missing or "atlas" not in have:
            lacking = ", ".join(sorted(missing)) or "the atlas's hash"
            raise AnnotationError(f"{name} was not made by a campaign (it lacks {lacking}); choose another database")
        owner = connection.execute(select(tables.version.c.atlas)).scalar_one()
        if owner != atlas:
            raise AnnotationError(
                f"{name} holds judgements of another atlas (manifest {owner[:12]}, this one is {atlas[:12]});"
                " give the atlas it belongs to, or another database"
            )
        if self.sqlite:
            for check in ("PRAGMA quick_check(1)", "PRAGMA foreign_key_check"):
                problem = connection.exec_driver_sql(check).first()
                if problem is not None and problem[0] != "ok":
                    what = " ".join(" ".join(map(str, problem)).split())
                    raise AnnotationError(f"{name} is damaged ({what}); restore it from a copy")


_KEYWORDS = re.compile(r"\b(password|host|user|dbname)\s*=")
"""PostgreSQL's keyword form of an address, which may hold a password."""
_NO_ADDRESS = "the address of the annotations cannot be read; write postgresql://USER@HOST/NAME"
_ADVICE = (
    ("SQLITE_FULL|SQLITE_IOERR|53100|No space", "make room on the disk, then save again"),
    ("SQLITE_BUSY|SQLITE_LOCKED|55P03|40P01|40001", "another process is writing; try again"),
    ("SQLITE_READONLY|SQLITE_CANTOPEN|SQLITE_PERM|25006|42501", "make it writable, or choose another"),
    ("SQLITE_NOTADB|SQLITE_CORRUPT", "restore it from a copy"),
    ("only grows", "judgements are never changed; save a new one"),
    ("28P01|28000|password", "check user and password"),
    ("3D000|does not exist", "create the database first"),
    ("connection|resolve|timeout|08", "check the address, and that the server runs"),
)


def address(given: str | Path | None, folder: Path) -> URL:
    """The address of annotations: a path, `sqlite:///...` or `postgresql://...`, by default in the atlas's `folder`.
    Raises AnnotationError, without a password in the text, for any other, and for a symbolic link in the folder.
    """
    if given is None:
        given = folder / ANNOTATIONS
        if given.is_symlink():
            # The atlas may be untrusted, and writing through its link would write anywhere.
            raise AnnotationError(f"{given} is a link; name the file that it leads to with --annotations")
    if isinstance(given, Path) or "://" not in given:
        if isinstance(given, str) and _KEYWORDS.search(given):
            raise AnnotationError(_NO_ADDRESS)
        return _file(Path(given))
    check_kind(given)
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise AnnotationError(_NO_ADDRESS) from None
    if url.get_backend_name() == "sqlite":
        return _file(Path(url.database or ""))
    if not url.get_backend_name():
        raise AnnotationError(_NO_ADDRESS)
    if "@" in (url.host or "") or "@" in (url.database or ""):
        # A part of a password would be parsed as host or name, and shown.
        raise AnnotationError("the address of the annotations has more than one @; write one in a password as %40")
    return url.set(drivername="postgresql+psycopg")


def format_address(url: URL) -> str:
    """The address without password or options."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"


def _file(path: Path) -> URL:
    if path.is_dir():
        raise AnnotationError(f"{path} is a folder; name a file for the annotations")
    if not path.parent.is_dir():
        raise AnnotationError(f"{path.parent} is not a folder, so {path.name} cannot be made there; make it first")
    return URL.create("sqlite", database=str(path))


def _engine(url: URL) -> Engine:
    sqlite = url.get_backend_name() == "sqlite"
    own = {"timeout": WAIT_SECONDS, "isolation_level": None}
    remote = {"connect_timeout": _CONNECT_SECONDS, "application_name": "mnemoscope"}
    try:
        engine = create_engine(
            url,
            pool_size=8,
            max_overflow=56 if sqlite else 16,
            pool_timeout=WAIT_SECONDS,
            pool_pre_ping=not sqlite,
            connect_args=own if sqlite else remote,
        )
    except ImportError:  # SQLAlchemy imports the driver here
        line = f"{format_address(url)} needs psycopg, which is not installed; pip install 'mnemoscope[postgresql]'"
        raise AnnotationError(line) from None
    if sqlite:
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _: object) -> None:
    try:
        connection.executescript("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        connection.close()
        raise


def _begin(connection: Connection) -> None:
    # A transaction that reads first fails to write if another one has written in between.
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
