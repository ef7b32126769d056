"""The role of a request on the annotation pages: host, annotator, or no access.

A host may see every page: a user on this machine, or with the server's access token. An annotator's invitation opens
only the annotation pages, even where a token is required. A browser with an annotator's work in progress has no host
access until the work is handed in, so that others' judgements stay hidden before.
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
_TOKEN = re.compile(r"[\w-]{20,64}", re.ASCII)


class AnnotatorSession:
    """The access rules of one site's annotations; most methods are dependencies of routes. A database named in the
    settings is opened at once. Raises AnnotationError if it cannot be reached, or is of another version or atlas.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        if site.settings.annotations is not None:
            site.judgements.store()

    def admits(self, request: Request) -> bool:
        """Whether the request may enter without the access token: the annotator's pages, which check access
        themselves.
        """
        path = path_of(request)
        if path == f"{PLACE}/join":
            return True
        ours = path in (PLACE, f"{PLACE}.json") or path.startswith((f"{PLACE}/", "/static/"))
        return ours and bool(self._token_of(request))

    def _token_of(self, request: Request) -> str:
        token = request.cookies.get(cookie_name(self.site, "judge"), "")
        return token if _TOKEN.fullmatch(token) else ""

    def known_annotator(self, request: Request) -> "Annotator | None":
        """The annotator of this browser, if any. Raises AnnotationError."""
        token = self._token_of(request)
        store = self.site.judgements.existing_store() if token else None
        return None if store is None else store.annotator(token)

    def annotator(self, request: Request) -> "Annotator":
        """The annotator of this browser. Raises 401 if there is none."""
        annotator = self.known_annotator(request)
        if annotator is None:
            raise HTTPException(401, "Nobody judges in this browser yet; open the link of your invitation.")
        return annotator

    def has_full_access(self, request: Request) -> bool:
        return self.site.settings.token is None or has_token(self.site, request)

    def judging(self, request: Request) -> "Annotator | None":
        """The annotator of this browser, if their work is not handed in yet."""
        annotator = self.known_annotator(request)
        if annotator is None or annotator.role == "host" or self.site.judgements.store().progress(annotator).handed_in:
            return None
        return annotator

    def host(self, request: Request) -> None:
        """Raises 403 unless the request is a host's."""
        if not self.has_full_access(request):
            raise HTTPException(403, "Only a host can see this; an invitation opens the pages of your own work.")
        annotator = self.judging(request)
        if annotator is not None:
            raise HTTPException(
                403,
                f"This browser judges as {annotator.name}, who sees what others said once all is handed in;"
                " stop judging in it, on the page of your work, to be the host again.",
            )

    def judged_store(self) -> "Store":
        """The store. Raises 404 if there are no judgements."""
        store = self.site.judgements.existing_store()
        if store is None:
            raise HTTPException(404, "Nobody has judged anything yet.")
        return store

    async def check_form(self, request: Request) -> None:
        await check_form(self.site, request)

    def set_annotator_cookie(self, answer: Response, token: str) -> Response:
        name = cookie_name(self.site, "judge")
        answer.set_cookie(name, token, max_age=COOKIE_SECONDS if token else 0, httponly=True, samesite="lax")
        return answer


def done(request: Request, data: dict[str, Any], *, to: str) -> Response:
    """The answer to a successful post: JSON for a program, a redirect for a browser."""
    return json_response(data) if wants_json(request) else RedirectResponse(to, 303)
