"""What all pages share: the present atlas with its caches, the judgements and, if given, the model.

A page is read from one edition throughout: files it reads are checked to belong to that edition, and if they no longer
do, the page is made from the next one. Imports torch only if a model is named.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from starlette.exceptions import HTTPException

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.show.pages.edition import Edition, manifests_of
from mnemoscope.web.judgements import SiteJudgements
from mnemoscope.web.settings import Settings

if TYPE_CHECKING:
    from mnemoscope.web.model_worker import ModelWorker

T = TypeVar("T")
_TRIES = 10
"""Editions from which a page is tried: `analyze` makes one with each answer."""


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
