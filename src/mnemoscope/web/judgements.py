"""The judgements behind the pages: the store of the present atlas, and the judgements that every page may show.

The store is opened on first use, in the atlas or where `--annotations` says. Access rules are in annotator_session.py.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from mnemoscope.annotate.judgements.reading import ANNOTATIONS
from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Edition
from mnemoscope.web.settings import Settings

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import Store

T = TypeVar("T")
RETRY_AFTER_SECONDS = 5.0
"""How long a database that failed is not tried again, so that readers of memories do not wait for it."""


class SiteJudgements:
    """The judgements of one site's atlas. Thread-safe."""

    def __init__(self, settings: Settings, edition: Callable[[], Edition]) -> None:
        self._settings, self._edition = settings, edition
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._silent = 0.0
        self._published = Cache(1)
        self.results = Cache(2)
        """What people found and its drawing, of the latest judgements."""

    def store(self) -> "Store":
        """The store of the present atlas, created if there is none."""
        edition = self._edition()
        with self._lock:
            store = self._open_store_of(edition.atlas.manifest_hash)
            if store is not None:
                return store
            from mnemoscope.annotate.campaigns.store import open_store

            store = open_store(edition.atlas, self._settings.annotations)
            if self._store is not None:
                # The folder holds another atlas now; requests still reading the old store keep their connections.
                self._store.close()
            self._store = store
            return store

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _open_store_of(self, hash: str) -> "Store | None":
        return self._store if self._store is not None and self._store.database.atlas == hash else None

    def existing_store(self) -> "Store | None":
        """The store, or None if this atlas has no judgements: reading a page creates no file."""
        file, path = self._settings.annotations, Path(self._settings.atlas, ANNOTATIONS)
        if self._open_store_of(self._edition().atlas.manifest_hash) is None and file is None and not path.exists():
            return None
        return self.store()

    def version_marks(self) -> tuple[int, ...]:
        """The numbers of rows in the append-only tables, which change with every judgement."""
        from mnemoscope.annotate.judgements.tables import GROWING

        with self.store().database.reading() as connection:
            return tuple(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in GROWING)

    def read_published(self) -> pl.DataFrame | None:
        """Every judgement that may be shown, for searches; None without any, or if the database is out of reach."""

        def read(store: "Store") -> pl.DataFrame:
            # Withdrawing an invitation may end a campaign without adding a row.
            people, moment = len(store.annotators()), int(time.monotonic() / RETRY_AFTER_SECONDS)
            marks = (store.database.atlas, self.version_marks(), people, moment)
            return self._published.get(marks, store.read_published)

        return self._ask(read, None)

    def published_for(self, memory: MemoryId) -> list[dict[str, Any]]:
        def read(store: "Store") -> list[dict[str, Any]]:
            rows = store.read_published(memory).filter(pl.col("kind") != "none").sort("author", maintain_order=True)
            return rows.select("author", "kind", "description", "triggers", campaign="sampled").to_dicts()

        return self._ask(read, [])

    def _ask(self, read: "Callable[[Store], T]", default: T) -> T:
        """The result of `read` on the store; the default without judgements, or if the database is out of reach."""
        if time.monotonic() < self._silent:
            return default
        try:
            store = self.existing_store()
            return default if store is None else read(store)
        except AnnotationError:
            self._silent = time.monotonic() + RETRY_AFTER_SECONDS
            return default
