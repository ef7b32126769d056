"""What all pages share: the present atlas with its caches, the judgements and, if given, the model.

A page is read from one edition throughout: files it reads are checked to belong to that edition, and if they no longer
do, the page is made from the next one. Imports torch only if a model is named.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl
from starlette.exceptions import HTTPException

from mnemoscope.annotate.judgements.reading import ANNOTATIONS
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.files import manifests_of
from mnemoscope.errors import AnnotationError, AtlasUnfinished
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.web.settings import Settings

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import Store
    from mnemoscope.web.model_worker import ModelWorker

T = TypeVar("T")
_TRIES = 10
"""Editions from which a page is tried: `analyze` makes one with each answer."""
RETRY_AFTER_SECONDS = 5.0
"""How long a database that failed is not tried again, so that readers of memories do not wait for it."""


class SiteJudgements:
    """The judgements of one site's atlas: its store, and those that every page may show. The store is opened on first
    use, in the atlas or where `--annotations` says. Thread-safe. Access rules are in annotator_session.py.
    """

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

    def published_for(self, memory: MemoryId) -> list[Data]:
        def read(store: "Store") -> list[Data]:
            rows = store.read_published(memory).filter(pl.col("kind") != "none").sort("author", maintain_order=True)
            return rows.select("author", "model", "kind", "description", "triggers", campaign="sampled").to_dicts()

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


class Site:
    """One served atlas, its judgements and, if given, the model. Thread-safe. Raises what opening an atlas or a model
    raises.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model: ModelWorker | None = None
        self.judgements = SiteJudgements(settings, self.edition)
        self._lock = threading.Lock()
        self._read = threading.local()
        """Its `edition` is the one that this thread reads."""
        self._waiting = 0
        self.latest = self._open(None)
        """The edition opened last, to be read where opening another one must not fail."""
        if settings.model is not None:
            from mnemoscope.web.model_worker import load_worker

            self.model = load_worker(settings, self.latest.atlas)

    def close(self) -> None:
        self.judgements.close()

    @property
    def atlas(self) -> Atlas:
        return self.edition().atlas

    def edition(self) -> Edition:
        """The edition being read, else the one now in the folder."""
        current: Edition | None = getattr(self._read, "edition", None)
        if current is not None:
            return current
        with self._lock:
            if not self.latest.is_current():
                self.latest = self._open(self.latest)
            return self.latest

    @contextmanager
    def reading(self, edition: Edition) -> Iterator[None]:
        """Inside the block, this thread reads that edition, whatever happens to the folder."""
        before = getattr(self._read, "edition", None)
        with self._lock:
            self._waiting += 1
        self._read.edition = edition
        try:
            yield
        finally:
            self._read.edition = before
            with self._lock:
                self._waiting -= 1

    def read(self, make: Callable[[], T], *, tries: int = _TRIES) -> T:
        """The result of `make` from one edition; from the next one if the folder changed and it failed."""
        edition = self.edition()
        try:
            with self.reading(edition):
                return make()
        except Exception as problem:
            # An HTTP error is an answer.
            if tries == 1 or isinstance(problem, HTTPException) or edition.is_current():
                raise
        return self.read(make, tries=tries - 1)

    @property
    def busy(self) -> bool:
        return self._waiting > 0

    def _open(self, before: Edition | None) -> Edition:
        # Taken first, so that later changes are detected.
        manifests = manifests_of(self.settings.atlas)
        atlas = open_atlas(self.settings.atlas)
        if part := atlas.manifest.part:
            raise AtlasUnfinished(f"{self.settings.atlas} is {part}; join all parts with `mnemoscope merge`")
        if self.model is not None:
            from mnemoscope.web.model_worker import describe_difference

            self.model.differs = describe_difference(self.settings, self.model.model, atlas)
        published = self.judgements.published_for
        if before is not None and before.manifests[:2] == manifests[:2]:  # other answers or patterns
            return Edition(before.atlas, manifests, mined=before.mined, published=published)
        return Edition(atlas, manifests, published=published)
