"""Who sits at the desk: the store of annotations behind the pages, and whether a request is a host's or an annotator's.

A host may see every page: somebody on this machine, or with the server's access token. An annotator comes by an
invitation, which opens the pages of annotating alone, also where a token is asked for. A browser that judges for a
campaign is no host's until the work is handed in, so that nobody sees others' judgements before.
"""

import re
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.cache import Cache
from mnemoscope.errors import AnnotationError
from mnemoscope.judgements.reading import ANNOTATIONS
from mnemoscope.memory import MemoryId
from mnemoscope.web.request_line import path_of
from mnemoscope.web.safety import checked, cookie_name, cookies, csrf_token, give_csrf, has_token
from mnemoscope.web.site import Site
from mnemoscope.web.templates import html, json_response, wants_json

if TYPE_CHECKING:
    import polars as pl

    from mnemoscope.campaigns.records import Annotator
    from mnemoscope.campaigns.store import Store

PLACE = "/annotate"
PATIENCE = 5.0
"""Seconds for which a database that did not answer is not tried again, so that readers of memories need not wait."""
KEPT = 90 * 24 * 3600
"""Seconds that a browser keeps an invitation."""
_TOKEN = re.compile(r"[\w-]{20,64}", re.ASCII)


class Desk:
    """The annotations of one site; the store is opened when it is first needed."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._failed: tuple[str, float, AnnotationError] | None = None
        self._silent = 0.0
        self._told = Cache(1)
        site.admits.append(self.admits)

    def store(self) -> "Store":
        """The store of the atlas as it is now, made where there is none; raises AnnotationError."""
        edition = self.site.edition()
        with self._lock:
            store = self._store_of(edition.hash)
            if store is not None:
                return store
            if self._failed is not None:
                hash, at, problem = self._failed
                if hash == edition.hash and time.monotonic() - at < PATIENCE:
                    raise problem
            from mnemoscope.campaigns.store import open_store

            try:
                store = open_store(edition.atlas, self.site.settings.annotations)
            except AnnotationError as problem:
                self._failed = (edition.hash, time.monotonic(), problem)
                raise
            if self._store is not None:
                # Another atlas lies in the folder; whoever still reads the old one's judgements keeps a connection.
                self._store.close()
            self._store = store
            return store

    def _store_of(self, hash: str) -> "Store | None":
        """The open store, if it is that of the atlas with this hash."""
        return self._store if self._store is not None and self._store.database.atlas == hash else None

    def begun(self) -> "Store | None":
        """The store, or None where nobody ever judged this atlas: looking at a page makes no file."""
        given, path = self.site.settings.annotations, Path(self.site.settings.atlas, ANNOTATIONS)
        if self._store_of(self.site.hash) is None and given is None and not path.exists():
            return None
        return self.store()

    def counted(self) -> tuple[int, ...]:
        """How many rows there are of what people said; nothing is ever taken away."""
        from sqlalchemy import func, select

        from mnemoscope.judgements.tables import GROWING

        with self.store().database.reading() as connection:
            asked = [select(func.count()).select_from(table) for table in GROWING]
            return tuple(int(connection.execute(one).scalar_one()) for one in asked)

    def admits(self, request: Request) -> bool:
        """Whether somebody without the access token may ask this: the annotator's pages, which look for themselves."""
        path = path_of(request)
        if path == f"{PLACE}/join":
            return True
        ours = path in (PLACE, f"{PLACE}.json") or path.startswith((f"{PLACE}/", "/static/"))
        return ours and bool(self._shown(request))

    def _shown(self, request: Request) -> str:
        found = cookies(request).get(cookie_name(self.site, "judge"), "")
        return found if _TOKEN.fullmatch(found) else ""

    def known(self, request: Request) -> "Annotator | None":
        """Who judges in this browser, if anybody; raises AnnotationError."""
        token = self._shown(request)
        store = self.begun() if token else None
        return None if store is None else store.annotator(token)

    def annotator(self, request: Request) -> "Annotator":
        """Who judges in this browser; raises 401 for nobody."""
        found = self.known(request)
        if found is None:
            raise HTTPException(401, "Nobody judges in this browser yet; open the link of your invitation.")
        return found

    def at_home(self, request: Request) -> bool:
        """Whether the browser may see every page."""
        return self.site.settings.token is None or has_token(self.site, request)

    def judging(self, request: Request) -> "Annotator | None":
        """The annotator of this browser whose work is not handed in yet."""
        found = self.known(request)
        if found is None or found.role == "host" or self.store().progress(found).handed_in:
            return None
        return found

    def host(self, request: Request) -> None:
        """Raises 403 for whoever is no host."""
        if not self.at_home(request):
            raise HTTPException(403, "Only a host can see this; an invitation opens the pages of your own work.")
        found = self.judging(request)
        if found is not None:
            raise HTTPException(
                403,
                f"This browser judges as {found.name}, who sees what others said once all is handed in;"
                " stop judging in it, on the page of your work, to be the host again.",
            )

    async def guarded(self, request: Request) -> None:
        """Raises 403 unless the form was made for this browser."""
        await checked(self.site, request)

    def seated(self, answer: Response, token: str) -> Response:
        """The answer, after which this browser judges by that token; an empty one: no longer."""
        name = cookie_name(self.site, "judge")
        answer.set_cookie(name, token, max_age=KEPT if token else 0, httponly=True, samesite="lax")
        return answer

    def drawn(self, request: Request, template: str, values: dict[str, Any], *, status: int = 200) -> Response:
        """A page that answers a post, with a form's token."""
        token = csrf_token(self.site, request)
        text = html(self.site, request, template, values | {"csrf": token})
        answer = Response(text, status, media_type="text/html", headers={"Cache-Control": "no-store"})
        give_csrf(self.site, answer, token)
        return answer

    def judged(self) -> "pl.DataFrame | None":
        """Every judgement that may be told, for searches; None where there is none, or the database is out of reach."""
        from mnemoscope.campaigns.published import published

        if time.monotonic() < self._silent:
            return None
        try:
            store = self.begun()
            if store is None:
                return None
            # An invitation that is withdrawn may end a campaign without a row.
            people, moment = len(store.annotators()), int(time.monotonic() / PATIENCE)
            return self._told.get((store.database.atlas, self.counted(), people, moment), lambda: published(store))
        except AnnotationError:
            self._silent = time.monotonic() + PATIENCE
            return None

    def said(self, memory: MemoryId) -> list[dict[str, Any]]:
        """What people say of a memory, for its page; nothing where the database is out of reach."""
        from mnemoscope.campaigns.published import published_for

        if time.monotonic() < self._silent:
            return []
        try:
            store = self.begun()
            found = () if store is None else published_for(store, memory)
        except AnnotationError:
            self._silent = time.monotonic() + PATIENCE
            return []
        return [
            {
                "author": one.author,
                "kind": one.kind,
                "description": one.description,
                "triggers": list(one.triggers),
                "campaign": one.campaign,
            }
            for one in found
        ]


def done(request: Request, data: dict[str, Any], *, to: str) -> Response:
    """The answer to a post that went well: data for a program, and for a browser the way to a page."""
    return json_response(data) if wants_json(request) else RedirectResponse(to, 303)


def new_key() -> str:
    """A key under which a form's judgement is stored once, however often it is sent."""
    return secrets.token_hex(12)
