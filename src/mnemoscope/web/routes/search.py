"""The routes of searching; and the search index, opened or built by a background thread."""

import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Path, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.atlas import Atlas
from mnemoscope.errors import StoreFailed
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.search import Index
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.search import LAST, search_page, token_page, tokens_page
from mnemoscope.web.page_routes import OneSite, both, new_router
from mnemoscope.web.site import Site

TIMEOUT_SECONDS = 1.5
"""How long a page waits for the index before it answers 503."""

Text = Annotated[str, Query(max_length=1_000, description='Words, "a phrase", a beginning (par*), or a memory')]
Fields = Annotated[
    list[str],
    Query(
        alias="in",
        max_length=8,
        description="Where: patterns, annotations, words, triggers, values, bottom; all but the last if none",
    ),
]
Layers = Annotated[str, Query(max_length=400, description="Only these layers, such as 0-3,7")]
Number = Annotated[int, Query(ge=1, le=LAST, description="Which page of hits, from 1")]
_MEMORY = re.compile(r"\s*[lL][0-9]{1,9}(\.[eEsS][0-9]{1,9})?\.[mM][0-9]{1,9}\s*")


class BackgroundIndex:
    """The index of the present atlas; opened again when the searched files have changed. Thread-safe."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._now: _Opening | None = None

    def begin(self) -> "_Opening":
        """Opens the index of the edition in the background, unless that has begun."""
        edition = self._site.edition()
        with self._lock:
            if self._now is None or self._now.index_source != edition.index_source or self._now.has_failed():
                edition.check_current()
                if self._now is not None:
                    self._now.unwanted.set()
                    self._now.future.add_done_callback(_close)
                self._now = _Opening(edition.atlas, edition.index_source)
                threading.Thread(target=self._open, args=(self._now,), name="search index", daemon=True).start()
            return self._now

    def index(self) -> Index:
        """The open index."""
        opening = self.begin()
        try:
            return opening.future.result(TIMEOUT_SECONDS)
        except TimeoutError:
            raise _try_again(f"The search index is being built{opening.done}") from None
        except StoreFailed:
            # A folder is emptied before another atlas is mined in it; its manifest is removed last.
            atlas = opening.atlas
            if atlas.foreign or all((atlas.path / file).exists() for file in atlas.hashes):
                raise
            raise _try_again("The search index needs files that are gone; the atlas may be being mined again") from None

    def _open(self, opening: "_Opening") -> None:
        from mnemoscope.search import open_index

        try:
            published = self._site.judgements.read_published
            opening.future.set_result(open_index(opening.atlas, progress=opening.progress, annotations=published))
        except Exception as problem:
            opening.future.set_exception(problem)


def _close(future: Future[Index]) -> None:
    if future.exception() is None:
        future.result().close()


def _try_again(sentence: str) -> HTTPException:
    return HTTPException(503, f"{sentence}; try again in a moment.", headers={"Retry-After": "5"})


@dataclass
class _Opening:
    """The index of an atlas and its patterns: its future and progress; `unwanted` cancels the build."""

    atlas: Atlas
    index_source: str
    unwanted: threading.Event = field(default_factory=threading.Event)
    future: Future[Index] = field(default_factory=Future)
    done: str = ""

    def has_failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None

    def progress(self, name: str, done: float, total: float | None, unit: str) -> None:
        """Records the progress of the build."""
        if self.unwanted.is_set():
            raise TimeoutError
        self.done = f" ({done / total:.0%} of its {unit})" if total else ""


router = new_router()


async def index_of(request: Request) -> BackgroundIndex:
    index: BackgroundIndex = request.app.state.index
    return index


OneIndex = Annotated[BackgroundIndex, Depends(index_of)]


@both(router, "/search", name="search")
def search(
    site: OneSite,
    background: OneIndex,
    q: Text = "",
    fields: Fields = [],  # noqa: B006
    layers: Layers = "",
    page: Number = 1,
) -> Page | Response:
    """Memories by words in their triggers, values, patterns and annotations; a memory's name opens it."""
    if _MEMORY.fullmatch(q):
        return RedirectResponse(f"/{site.atlas[MemoryId.parse(q.strip().upper())].id}", 303)
    return search_page(site.edition(), background.index, text=q, fields=fields, layers=layers, page=page)


@both(router, "/tokens", name="tokens")
def tokens(
    site: OneSite,
    background: OneIndex,
    q: Annotated[str, Query(max_length=200, description="Part of the token's text")] = "",
) -> Page:
    """Tokens that read like a text; without one, the most frequent."""
    return tokens_page(site.edition(), background.index, text=q)


@both(router, "/tokens/{token}", name="token")
def token(
    site: OneSite,
    background: OneIndex,
    token: Annotated[int, Path(ge=0, le=(1 << 31) - 1, description="The token's number")],
    layers: Layers = "",
    page: Number = 1,
) -> Page:
    """One token: the values that promote it, those that demote it, and the keys that fire on it."""
    last = len(site.edition().atlas.vocabulary.texts) - 1
    if token > last:
        raise HTTPException(404, f"Token {token} is not in the vocabulary, which has tokens 0-{last}.")
    return token_page(site.edition(), background.index, token=token, layers=layers, page=page)
