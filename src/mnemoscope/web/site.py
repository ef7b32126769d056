"""What all pages share: the atlas as it is now, what was made from it, and, where one was given, the model's side.

A finished atlas never changes, but another may be mined in its place, and answers and patterns can be made again. Each
such state of the folder is an `Edition` with caches of its own, and a page is read from one edition from its beginning
to its end: what it reads of files is checked to be that edition's, and where it no longer is the page is made from the
next. Never imports torch unless a model was named.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from starlette.exceptions import HTTPException

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.show.pages.edition import Edition, footprint_of
from mnemoscope.web.judgements import SiteJudgements
from mnemoscope.web.settings import Settings

if TYPE_CHECKING:
    from mnemoscope.web.model_worker import ModelWorker

T = TypeVar("T")
_TRIES = 10
"""Editions that a page is tried to be made from: `analyze` makes nine, one after the other."""


class Site:
    """One atlas being served, with what people said of it, and with the model where one was given.

    Raises what opening an atlas raises; with a model ModelError and ModelDiffers.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model: ModelWorker | None = None
        self.judgements = SiteJudgements(settings, self.edition)
        self._lock = threading.Lock()
        self._waiting = 0
        self.latest = self._open(None)
        """The edition that was opened last; to be read where opening another one must not fail."""
        if settings.model is not None:
            from mnemoscope.web.model_worker import load_worker

            self.model = load_worker(settings, self.latest.atlas)

    def close(self) -> None:
        """Gives back the connections to people's judgements, once no page is made any more."""
        self.judgements.close()

    @property
    def atlas(self) -> Atlas:
        """The atlas of the edition."""
        return self.edition().atlas

    def edition(self) -> Edition:
        """The edition that is being read; outside `reading` the one that lies in the folder now.

        Raises what opening an atlas raises, and ModelDiffers where another model's was mined in its place.
        """
        held = _READ.get()
        if held is not None and held[0] is self:
            return held[1]
        with self._lock:
            if not self.latest.is_current():
                self.latest = self._open(self.latest)
            return self.latest

    @contextmanager
    def reading(self, edition: Edition) -> Iterator[None]:
        """Inside the block this thread reads that edition, whatever happens to the folder meanwhile."""
        token = _READ.set((self, edition))
        try:
            yield
        finally:
            _READ.reset(token)

    def read(self, make: Callable[[], T]) -> T:
        """What `make` gives from one edition; from the next one where the folder changed and it could not be made."""
        for tries_left in reversed(range(_TRIES)):
            edition = self.edition()
            with self._busy(), self.reading(edition):
                try:
                    return make()
                except HTTPException:
                    # A refusal is an answer, too.
                    raise
                except Exception:
                    if not tries_left or edition.is_current():
                        raise
        raise AssertionError("the last try ends in a page or an error")

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a page."""
        return self._waiting > 0

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _open(self, before: Edition | None) -> Edition:
        # Taken first: what changes meanwhile is seen next time.
        footprint = footprint_of(self.settings.atlas)
        atlas = open_atlas(self.settings.atlas)
        if part := atlas.manifest.part:
            raise AtlasUnfinished(f"{self.settings.atlas} is {part}; join all parts with `mnemoscope merge`")
        if self.model is not None:
            from mnemoscope.web.model_worker import describe_difference

            self.model.differs = describe_difference(self.settings, self.model.model, atlas)
        opened = Edition(atlas, footprint)
        if before is not None and before.mined_files == opened.mined_files:
            return before.followed_by(footprint)
        return opened


_READ: ContextVar[tuple[Site, Edition] | None] = ContextVar("read", default=None)
"""The edition that the code that runs is reading, of which site."""
