"""The search index of a site: opened, or made, by a thread of its own, so that no page waits for it to be built."""

import threading
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from mnemoscope.pages.edition import Edition
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    from mnemoscope.search import Index

PATIENCE = 1.5
"""Seconds that a page waits for the index before it says that it is not there yet."""


class Opening:
    """The index of the atlas as it is now; opened again when another edition of it is read."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._now: _Opened | None = None

    def begin(self) -> "_Opened":
        """Opens the index of the edition in the background, unless that has been begun."""
        edition = self._site.edition()
        with self._lock:
            if self._now is None or self._now.state != edition.state or self._now.problem is not None:
                before, self._now = self._now, _Opened(edition)
                threading.Thread(
                    target=self._open, args=(self._now, before), name="search index", daemon=True
                ).start()
            return self._now

    def index(self) -> "Index":
        """The open index; raises 503 while it is built, and what went wrong."""
        opened = self.begin()
        if not opened.ready.wait(PATIENCE):
            raise HTTPException(
                503,
                f"The search index is being built{opened.done}; try again in a moment.",
                headers={"Retry-After": "5"},
            )
        if opened.problem is not None:
            raise opened.problem
        assert opened.index is not None
        return opened.index

    def close(self) -> None:
        """Gives back the index's files."""
        if self._now is not None and self._now.index is not None:
            self._now.index.close()

    def _open(self, opened: "_Opened", before: "_Opened | None") -> None:
        from mnemoscope.search import open_index

        try:
            opened.index = open_index(
                opened.edition.atlas, progress=opened.progress, annotations=self._site.judgements.read_published
            )
        except Exception as problem:
            opened.problem = problem
        opened.ready.set()
        if before is not None:
            # One that is still being built is nobody's once it is there.
            before.ready.wait()
            if before.index is not None:
                before.index.close()


class _Opened:
    """The index of one edition: being opened until `ready`, then there, or what went wrong."""

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self.state = edition.state
        self.ready = threading.Event()
        self.index: Index | None = None
        self.problem: Exception | None = None
        self.done = ""

    def progress(self, name: str, done: float, total: float | None, unit: str) -> None:
        """Remembers how far the index is."""
        self.done = f" ({done / total:.0%} of its {unit})" if total else ""
