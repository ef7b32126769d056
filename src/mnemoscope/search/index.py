"""Searches text in any field, and memories by token. Thread-safe."""

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from mnemoscope.annotate.judgements.reading import read_judgements
from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged, MemoryIdError, OptionError
from mnemoscope.foundation.options.search_fields import USUAL_FIELDS, check_search_fields
from mnemoscope.search import tokens
from mnemoscope.search.database import Connections, MemoryNumbering, Ranges
from mnemoscope.search.fields import ANNOTATIONS, PATTERNS, Annotations, Patterns, Values
from mnemoscope.search.matches import Hit
from mnemoscope.search.text import parse_query
from mnemoscope.search.tokens import Firing, Promotion, VocabularyToken
from mnemoscope.search.trigger_words import TRIGGERS, WORDS, IndexedTriggers, TriggerFields

MOST_HITS = 10_000
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
            return SearchResult(tuple(hits), total, totals, exact)

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
                        self._triggers = IndexedTriggers.read(database, raw, spaced=self._spaced)
                    triggers = self._triggers
                yield TriggerFields(both, database, self._numbering, triggers)
            elif name == PATTERNS:
                yield Patterns(database, self._numbering)
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
