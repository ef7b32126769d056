"""The search index of a site: opened, or made, by a thread of its own, so that no page waits for it to be built."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from mnemoscope.web.site import Site

if TYPE_CHECKING:
    import polars as pl

    from mnemoscope.search import Index

PATIENCE = 1.5
"""Seconds that a page waits for the index before it says that it is not there yet."""

Judgements = Callable[[], "pl.DataFrame | None"]


class Opening:
    """The index of the atlas as it is now; opened again when patterns have been made again."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._state = ""
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._problem: Exception | None = None
        self._done = ""

    def begin(self) -> None:
        """Opens the index in the background, unless that has been done for this state of the atlas."""
        with self._lock:
            if self._state == self._site.state():
                return
            self._state = self._site.state()
            self._ready = threading.Event()
            threading.Thread(target=self._open, args=(self._ready,), name="search index", daemon=True).start()

    def index(self) -> "Index":
        """The open index; raises 503 while it is built, and what went wrong."""
        self.begin()
        if not self._ready.wait(PATIENCE):
            raise HTTPException(
                503,
                f"The search index is being built{self._done}; try again in a moment.",
                headers={"Retry-After": "5"},
            )
        if self._problem is not None:
            raise self._problem
        assert self._index is not None
        return self._index

    def close(self) -> None:
        """Gives back the index's files."""
        if self._ready.is_set() and self._index is not None:
            self._index.close()

    def _open(self, ready: threading.Event) -> None:
        from mnemoscope.search import open_index

        old, self._problem = self._index, None
        try:
            self._index = open_index(self._site.atlas, progress=self._progress, annotations=self._site.judgements)
        except Exception as problem:
            self._problem = problem
            with self._lock:
                # The next search tries again.
                self._state = ""
        ready.set()
        if old is not None and old is not self._index:
            old.close()

    def _progress(self, name: str, done: float, total: float | None, unit: str) -> None:
        self._done = f" ({done / total:.0%} of its {unit})" if total else ""
