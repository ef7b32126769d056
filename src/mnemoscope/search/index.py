"""Searching: text in any field, and the memories that know a token. Safe for any number of threads.

Every field is asked by itself and ranks its own hits; hits.py shows them. Nothing that a user types becomes SQL: what
is typed is a parameter, made of quoted strings alone (text.py).
"""

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from mnemoscope.errors import AtlasDamaged, MemoryIdError, OptionError
from mnemoscope.search import fields as asked
from mnemoscope.search import tokens
from mnemoscope.search.answers import FIELDS, USUAL_FIELDS, Firing, Hit, Promotion, SearchResult, Token
from mnemoscope.search.connections import Connections
from mnemoscope.search.judgements import Judgements
from mnemoscope.search.layout import BOTTOM, TOP
from mnemoscope.search.places import Places
from mnemoscope.search.text import parsed

if TYPE_CHECKING:
    import polars as pl

    from mnemoscope.atlas import Atlas

MOST_HITS = 10_000
Answer = TypeVar("Answer")


class Index:
    """The opened index of one atlas. Made by `open_index`."""

    def __init__(
        self,
        atlas: "Atlas",
        path: Path,
        *,
        renewed: Callable[[], Path],
        temporary: Path | None = None,
        annotations: "Callable[[], pl.DataFrame | None] | None" = None,
    ) -> None:
        self.atlas = atlas
        self.path = path
        self.lacking: tuple[str, ...] = ()
        """Fields of which the atlas has nothing to search yet, such as patterns before `analyze`."""
        self._renewed = renewed
        self._temporary = temporary
        self._raw: list[bytes] | None = None
        self._judgements = Judgements(atlas.path, annotations)
        self._open(path)

    def _open(self, path: Path) -> None:
        self._connections = Connections(path)
        with self._connections.one() as database:
            self._about = dict(database.execute("SELECT name, said FROM about").fetchall())
            layers = database.execute("SELECT layer, first, count FROM layers ORDER BY layer").fetchall()
        self.places = Places(layers, spaced=self._about["spaced"] == "1")
        self.lacking = tuple(name for name in self._about["lacking"].split(",") if name)

    def __enter__(self) -> "Index":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back files; a temporary index is removed."""
        self._connections.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def raw(self) -> list[bytes]:
        """The bytes of every token."""
        if self._raw is None:
            self._raw = self.atlas.table("vocabulary")["bytes"].to_list()
        return self._raw

    def search(
        self,
        text: str,
        *,
        fields: Sequence[str] = USUAL_FIELDS,
        layers: Sequence[int] | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> SearchResult:
        """Hits number `offset` to `offset + limit` for `text`, the best of every field first.

        All words must be in the same prefix (triggers), among the same memory's tokens (values, bottom) or in the same
        description; "quotes" keep words together, `par*` is the beginning of a word. Case and accents do not matter.

        Raises SearchError for a text without words, OptionError for a field that is none or an impossible page,
        MemoryIdError for a layer that was not mined.
        """
        query = parsed(text)
        wanted = tuple(dict.fromkeys(fields))
        if unknown := [field for field in wanted if field not in FIELDS]:
            raise OptionError(f"field {unknown[0]!r} cannot be searched; choose of {', '.join(FIELDS)}")
        self._check_page(limit, offset)
        within = self._within(layers)
        judged = self._judgements.now() if "annotations" in wanted else None

        def ask(database: sqlite3.Connection) -> SearchResult:
            found = {
                field: asked.field_hits(database, self, field, query, within, limit + offset, judged)
                for field in wanted
            }
            places = [
                (place, wanted.index(field), row) for field in wanted for place, row in enumerate(found[field].rows)
            ]
            page = [(wanted[field], row) for _, field, row in sorted(places, key=lambda p: p[:2])][
                offset : offset + limit
            ]
            hits: dict[tuple[str, int], Hit] = {}
            for field in wanted:
                rows = [row for name, row in page if name == field]
                shown = asked.shown(database, self, field, rows, query, judged)
                hits |= {(field, row.memory): hit for row, hit in zip(rows, shown, strict=True)}
            totals = {field: found[field].total for field in wanted}
            return SearchResult(
                hits=tuple(hits[field, row.memory] for field, row in page),
                total=sum(totals.values()),
                totals=totals,
                exact=all(answer.exact for answer in found.values()),
            )

        return self._ask(ask)

    def tokens_like(self, text: str, *, limit: int = 50) -> tuple[Token, ...]:
        """The tokens that read like `text`: those that are it first, then those that begin with it, then hold it.

        White space may be typed as it is or as it is shown (`·Paris`). Case and outer space do not matter unless shown.
        """
        self._check_page(limit, 0)
        return self._ask(lambda database: tokens.like(database, text, limit=limit))

    def token(self, token: str | int) -> tuple[Token, ...]:
        """The tokens with exactly this text or this id, mostly one; raises SearchError where there is none."""
        return self._ask(lambda database: tokens.exactly(database, token))

    def promoting(
        self,
        token: str | int,
        *,
        bottom: bool = False,
        layers: Sequence[int] | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> tuple[Promotion, ...]:
        """The memories with the token among their value's 20 top tokens, most probable first.

        With `bottom`, those with it among the 20 bottom tokens, most opposed first. Raises SearchError for no token.
        """
        self._check_page(limit, offset)
        within, side = self._within(layers), BOTTOM if bottom else TOP
        return self._ask(
            lambda database: tokens.promoting(database, self.places, token, side, within, limit=limit, offset=offset)
        )

    def firing_on(
        self, token: str | int, *, layers: Sequence[int] | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Firing, ...]:
        """The memories with highest triggers that end in the token, those with most such triggers first."""
        self._check_page(limit, offset)
        within = self._within(layers)
        return self._ask(
            lambda database: tokens.firing_on(database, self.places, token, within, limit=limit, offset=offset)
        )

    def count(self, token: str | int, *, kind: str, layers: Sequence[int] | None = None) -> int:
        """How many memories promote, oppose (`demotes`) or fire on (`fires`) the token."""
        within = self._within(layers)
        return self._ask(lambda database: tokens.count(database, token, kind, within))

    def _within(self, layers: Sequence[int] | None) -> tuple[tuple[int, int], ...]:
        """The ranges of memories' numbers that belong to the layers."""
        try:
            return self.places.ranges(layers)
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
        """What `ask` returns; where the file turns out to be damaged it is made again, once."""
        connections = self._connections
        try:
            with connections.one() as database:
                return ask(database)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
                raise
        connections.close()
        self._open(self._renewed())
        try:
            with self._connections.one() as database:
                return ask(database)
        except sqlite3.DatabaseError as error:
            raise AtlasDamaged(
                f"{self.path} cannot be read ({error}); delete {self.path.parent} and search again"
            ) from error
