"""Searches text in any field, and memories by token. Thread-safe.

The index of an atlas is built first if it is missing, damaged or older than the atlas: of two processes, one builds and
the other waits. If the atlas is read-only, the index is in a temporary folder.
"""

import errno
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from numpy.typing import NDArray

from mnemoscope.annotate.judgements.reading import read_judgements
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.folder import refuse_links
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasBusy, AtlasDamaged, MemoryIdError, OptionError, StoreFailed
from mnemoscope.foundation.files import file_hash, replacing
from mnemoscope.foundation.options.search_fields import USUAL_FIELDS, check_search_fields
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.search import tokens
from mnemoscope.search.building import write_index
from mnemoscope.search.database import FOLDER, NAME, VERSION, Connections, MemoryNumbering, Ranges, is_fresh
from mnemoscope.search.fields import ANNOTATIONS, PATTERNS, Annotations, Patterns, Values, read_patterns
from mnemoscope.search.matches import Hit
from mnemoscope.search.text import parse_query
from mnemoscope.search.tokens import Firing, Promotion, VocabularyToken
from mnemoscope.search.trigger_words import TRIGGERS, WORDS, IndexedTriggers, TriggerFields
from mnemoscope.search.windows import Windows

MOST_HITS = 10_000
_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_RETRY_AFTER_SECONDS = 0.1
Answer = TypeVar("Answer")
ReadJudgements = Callable[[], pl.DataFrame | None]
"""As `read_judgements`."""


@dataclass(frozen=True)
class SearchResult:
    """One page of hits, field by field."""

    hits: tuple[Hit, ...]
    total: int
    """The number of hits on all pages."""
    totals: dict[str, int]
    """The number of matching memories by searched field."""
    exact: bool
    """False if the text is so common that only the strongest triggers of every memory were counted."""
    notes: tuple[str, ...] = ()
    """What was read as an operator, or might have been meant as one."""


class Index:
    def __init__(
        self,
        atlas: Atlas,
        path: Path,
        *,
        rebuild: Callable[[], Path],
        temporary: Path | None = None,
        annotations: ReadJudgements | None = None,
    ) -> None:
        self.atlas = atlas
        self.path = path
        self._rebuild = rebuild
        self._temporary = temporary
        self._lock = threading.Lock()
        self._read_judgements = annotations or (lambda: read_judgements(atlas.path))
        self._open(path)

    def _open(self, path: Path) -> None:
        self._connections = Connections(path)
        self._triggers: IndexedTriggers | None = None
        self._patterns: NDArray[Any] | None = None
        with self._connections.one() as database:
            about = dict(database.execute("SELECT name, said FROM about").fetchall())
            layers = database.execute("SELECT layer, first, count FROM layers ORDER BY layer").fetchall()
        self._numbering = MemoryNumbering(layers, self.atlas.numbering)
        self._spaced = about["spaced"] == "1"
        self.missing_fields = tuple(name for name in about["lacking"].split(",") if name)
        """Fields that the atlas has no table for yet, such as patterns before `analyze`."""

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; the process that made a temporary index removes it."""
        self._connections.close()
        if self._temporary is not None and not self._connections.in_a_fork:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def search(
        self,
        text: str,
        *,
        fields: Sequence[str] = USUAL_FIELDS,
        layers: Sequence[int] | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> SearchResult:
        """Hits `offset` to `offset + limit` for `text`.

        All words must be in the same prefix (triggers; words: one of them at its end, completed), among the same
        memory's tokens (values, bottom) or in the same description. "quotes" make a phrase, `par*` matches the
        beginning of a word, `red OR blue` either; case, accents and plurals are ignored. Fields come in the order
        given, words and triggers together.
        """
        query = parse_query(text)
        names = tuple(dict.fromkeys(fields))
        check_search_fields(names)
        self._check_page(limit, offset)
        within = self._within(layers)
        judgements = self._read_judgements() if ANNOTATIONS in names else None

        def ask(database: sqlite3.Connection) -> SearchResult:
            hits: list[Hit] = []
            total, totals, exact = 0, dict.fromkeys(names, 0), True
            for field in self._fields(names, database, judgements):
                skipped = max(0, offset - total)
                matches = field.find(query, within, slice(skipped, skipped + limit - len(hits)))
                hits += matches.page
                total += matches.total
                totals |= matches.memories
                exact &= matches.exact
            return SearchResult(tuple(hits), total, totals, exact, query.notes)

        return self._ask(ask)

    def _fields(
        self, names: Sequence[str], database: sqlite3.Connection, judgements: pl.DataFrame | None
    ) -> Iterator[TriggerFields | Values | Patterns | Annotations]:
        for name in dict.fromkeys(TRIGGERS if name == WORDS else name for name in names):
            if name == TRIGGERS:
                both = [name for name in (WORDS, TRIGGERS) if name in names]
                with self._lock:
                    if self._triggers is None:
                        raw = self.atlas.vocabulary.raw
                        self._triggers = IndexedTriggers.read(
                            database, Windows(raw, spaced=self._spaced, reading=self.atlas.reading)
                        )
                    triggers = self._triggers
                yield TriggerFields(both, database, self._numbering, triggers)
            elif name == PATTERNS:
                if self._patterns is None:
                    self._patterns = read_patterns(database)
                yield Patterns(database, self._numbering, self._patterns)
            elif name == ANNOTATIONS:
                yield Annotations(judgements, self._numbering)
            else:
                yield Values(name, database, self._numbering)

    def tokens_like(self, text: str, *, limit: int = 50) -> tuple[VocabularyToken, ...]:
        """The tokens with `text` in them: equal ones first, then those that start with it.

        White space matches as it is, or as it is shown (`·Paris`). Case and outer space are ignored unless shown.
        """
        self._check_page(limit, 0)
        return self._ask(lambda database: tokens.like(database, text, limit=limit))

    def token(self, token: str | int) -> tuple[VocabularyToken, ...]:
        """The tokens with exactly this text or id, usually one; or `near`."""
        return self._ask(lambda database: tokens.exactly(database, token))

    def near(self, text: str) -> tuple[VocabularyToken, ...]:
        """The only other token that differs from this text in outer spaces, or else in case; usually none."""
        return self._ask(lambda database: tokens.near(database, text))

    def promoting(
        self,
        token: str | int,
        *,
        bottom: bool = False,
        layers: Sequence[int] | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> tuple[Promotion, ...]:
        """The memories with the token among their value's 20 top tokens, the most probable first; with `bottom`, those
        with it among the 20 bottom tokens.
        """
        return self._find_memories(token, "demotes" if bottom else "promotes", layers, limit, offset)

    def firing_on(
        self, token: str | int, *, layers: Sequence[int] | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Firing, ...]:
        """The memories whose highest triggers end in the token, by the number of these triggers."""
        return self._find_memories(token, "fires", layers, limit, offset)

    def _find_memories(
        self, token: str | int, kind: str, layers: Sequence[int] | None, limit: int, offset: int
    ) -> tuple[Any, ...]:
        self._check_page(limit, offset)
        within, page = self._within(layers), (limit, offset)
        return self._ask(lambda database: tokens.find_memories(database, self._numbering, token, kind, within, page))

    def count(self, token: str | int, *, kind: str, layers: Sequence[int] | None = None) -> int:
        """The number of memories; `kind` is promotes, demotes or fires."""
        within = self._within(layers)
        return self._ask(lambda database: tokens.count(database, token, kind, within))

    def _within(self, layers: Sequence[int] | None) -> Ranges:
        try:
            return self._numbering.ranges(layers)
        except KeyError as missing:
            raise MemoryIdError(
                f"layer {missing.args[0]} is not in {self.atlas.path}, which has {self.atlas.range_text()}"
            ) from None

    def _check_page(self, limit: int, offset: int) -> None:
        if limit < 1 or offset < 0 or limit + offset > MOST_HITS:
            raise OptionError(
                f"hits {offset} to {offset + limit} cannot be shown; choose 1 or more of the first {MOST_HITS:,}"
            )

    def _ask(self, ask: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The result of `ask`; a damaged file is rebuilt once."""
        connections = self._connections
        try:
            with connections.one() as database:
                return ask(database)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
                raise
        connections.close()
        self._open(self._rebuild())
        try:
            with self._connections.one() as database:
                return ask(database)
        except sqlite3.DatabaseError as error:
            raise AtlasDamaged(
                f"{self.path} cannot be read ({error}); delete {self.path.parent} and search again"
            ) from error


def open_index(
    atlas: Atlas | str | Path, *, progress: bool | Progress = True, annotations: ReadJudgements | None = None
) -> Index:
    """The index of the atlas, for any number of threads; close it, or use it as a context.

    `annotations` returns the final judgements, by default those of `read_judgements`. Raises StoreFailed if the index
    cannot be written for other reasons than permission, and what opening an atlas raises.
    """
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    with report_to(progress) as say:
        try:
            path, temporary = build_index(opened, progress=say), None
        except StoreFailed as refused:
            cause = refused.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _PERMISSION_ERRORS:
                raise
            say("index", 0, None, f"{opened.path} cannot be written; the index is made for this time only")
            temporary = Path(tempfile.mkdtemp(prefix="mnemoscope-search-"))
            try:
                path = _write(opened, temporary / NAME, say)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise

    def rebuild() -> Path:
        return build_index(opened, anew=True) if temporary is None else _write(opened, path, ignore_progress)

    return Index(opened, path, rebuild=rebuild, temporary=temporary, annotations=annotations)


def build_index(atlas: Atlas, *, progress: Progress | None = None, anew: bool = False) -> Path:
    """The index's path; built if it is missing, damaged or stale, or if `anew`."""
    refuse_links(atlas.path)
    say = progress or ignore_progress
    path = atlas.local(f"{FOLDER}/{NAME}")
    about = expected_facts(atlas)
    before = _identity(path) if anew else None
    reported = False

    def is_there() -> bool:
        # A fresh index is used even while another process builds; with `anew`, only one that was replaced meanwhile.
        return (not anew or _identity(path) != before) and is_fresh(path, about)

    while not is_there():
        try:
            with lock_folder(path.parent):
                if not is_there():
                    _write(atlas, path, say)
                break
        except AtlasBusy:
            if not reported:
                say("index", 0, None, "another process is building it; waiting")
            reported = True
            time.sleep(_RETRY_AFTER_SECONDS)
    return path


def expected_facts(atlas: Atlas) -> dict[str, str]:
    return {
        "version": str(VERSION),
        "manifest": atlas.manifest_hash,
        "patterns": file_hash(atlas.local(TABLES["patterns"].path())) if atlas.has("patterns") else "",
    }


def _write(atlas: Atlas, path: Path, progress: Progress) -> Path:
    try:
        with replacing(path) as file:
            write_index(atlas, Path(file.name), about=expected_facts(atlas), progress=progress)
    except sqlite3.Error as error:
        raise StoreFailed(f"cannot write {path.parent}: {error}; make room there, then run it again") from error
    return path


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
