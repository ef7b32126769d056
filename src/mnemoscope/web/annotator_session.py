"""Who sends a request to the pages of annotating: a host, an annotator, or nobody who may see them.

A host may see every page: somebody on this machine, or with the server's access token. An annotator comes by an
invitation, which opens the pages of annotating alone, also where a token is asked for. A browser that judges for a
campaign is no host's until the work is handed in, so that nobody sees others' judgements before.
"""

import re
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.web.rendering import json_response, path_of, wants_json
from mnemoscope.web.security import check_form, cookie_name, has_token
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import Store
    from mnemoscope.annotate.campaigns.views import Annotator

PLACE = "/annotate"
COOKIE_SECONDS = 90 * 24 * 3600
"""For how long a browser keeps an invitation."""
_TOKEN = re.compile(r"[\w-]{20,64}", re.ASCII)


class AnnotatorSession:
    """Who may see what of the annotations of one site; most methods are dependencies of routes.

    A database that was named is opened at once; raises AnnotationError where it cannot be reached, or is of another
    version or atlas.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        if site.settings.annotations is not None:
            site.judgements.store()

    def admits(self, request: Request) -> bool:
        """Whether somebody without the access token may ask this: the annotator's pages, which look for themselves."""
        path = path_of(request)
        if path == f"{PLACE}/join":
            return True
        ours = path in (PLACE, f"{PLACE}.json") or path.startswith((f"{PLACE}/", "/static/"))
        return ours and bool(self._token_of(request))

    def _token_of(self, request: Request) -> str:
        found = request.cookies.get(cookie_name(self.site, "judge"), "")
        return found if _TOKEN.fullmatch(found) else ""

    def known_annotator(self, request: Request) -> "Annotator | None":
        """Who judges in this browser, if anybody; raises AnnotationError."""
        token = self._token_of(request)
        store = self.site.judgements.existing_store() if token else None
        return None if store is None else store.annotator(token)

    def annotator(self, request: Request) -> "Annotator":
        """Who judges in this browser; raises 401 for nobody."""
        found = self.known_annotator(request)
        if found is None:
            raise HTTPException(401, "Nobody judges in this browser yet; open the link of your invitation.")
        return found

    def has_full_access(self, request: Request) -> bool:
        """Whether the browser may see every page."""
        return self.site.settings.token is None or has_token(self.site, request)

    def judging(self, request: Request) -> "Annotator | None":
        """The annotator of this browser whose work is not handed in yet."""
        found = self.known_annotator(request)
        if found is None or found.role == "host" or self.site.judgements.store().progress(found).handed_in:
            return None
        return found

    def host(self, request: Request) -> None:
        """Raises 403 for whoever is no host."""
        if not self.has_full_access(request):
            raise HTTPException(403, "Only a host can see this; an invitation opens the pages of your own work.")
        found = self.judging(request)
        if found is not None:
            raise HTTPException(
                403,
                f"This browser judges as {found.name}, who sees what others said once all is handed in;"
                " stop judging in it, on the page of your work, to be the host again.",
            )

    def judged_store(self) -> "Store":
        """The store; raises 404 where nobody ever judged."""
        store = self.site.judgements.existing_store()
        if store is None:
            raise HTTPException(404, "Nobody has judged anything yet.")
        return store

    async def check_form(self, request: Request) -> None:
        """Raises 403 unless the form was made for this browser."""
        await check_form(self.site, request)

    def set_annotator_cookie(self, answer: Response, token: str) -> Response:
        """The answer, after which this browser judges by that token; an empty one: no longer."""
        name = cookie_name(self.site, "judge")
        answer.set_cookie(name, token, max_age=COOKIE_SECONDS if token else 0, httponly=True, samesite="lax")
        return answer


def done(request: Request, data: dict[str, Any], *, to: str) -> Response:
    """The answer to a post that went well: data for a program, and for a browser the way to a page."""
    return json_response(data) if wants_json(request) else RedirectResponse(to, 303)
