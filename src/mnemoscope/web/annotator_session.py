"""The role of a request on the annotation pages: host, annotator, or no access.

A host may see every page: a user on this machine, or with the server's access token. An annotator's invitation opens
only the annotation pages, even where a token is required. A browser with an annotator's work in progress has no host
access until the work is handed in, so that others' judgements stay hidden before.
"""

import re
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.web.middleware.security import check_form, cookie_name, has_token
from mnemoscope.web.page_routes import OneSite
from mnemoscope.web.rendering import json_response, path_of, wants_json
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import Store
    from mnemoscope.annotate.campaigns.views import Annotator

PLACE = "/annotate"
COOKIE_SECONDS = 90 * 24 * 3600
_TOKEN = re.compile(r"[\w-]{20,64}", re.ASCII)


def admits(site: Site, request: Request) -> bool:
    """Whether the request may enter without the access token: the annotator's pages, which check access themselves."""
    path = path_of(request)
    if path == f"{PLACE}/join":
        return True
    ours = path in (PLACE, f"{PLACE}.json") or path.startswith((f"{PLACE}/", "/static/"))
    return ours and bool(_token_of(site, request))


def _token_of(site: Site, request: Request) -> str:
    token = request.cookies.get(cookie_name(site, "judge"), "")
    return token if _TOKEN.fullmatch(token) else ""


def known_annotator(site: OneSite, request: Request) -> "Annotator | None":
    token = _token_of(site, request)
    store = site.judgements.existing_store() if token else None
    return None if store is None else store.annotator(token)


MaybeAnnotator = Annotated[Any, Depends(known_annotator)]


def annotator_of(maybe: MaybeAnnotator) -> "Annotator":
    if maybe is None:
        raise HTTPException(401, "Nobody judges in this browser yet; open the link of your invitation.")
    annotator: Annotator = maybe
    return annotator


def has_full_access(site: Site, request: Request) -> bool:
    return site.settings.token is None or has_token(site, request)


def judging_annotator(site: Site, request: Request) -> "Annotator | None":
    """The annotator of this browser, if their work is not handed in yet."""
    annotator = known_annotator(site, request)
    if annotator is None or annotator.role == "host" or site.judgements.store().progress(annotator).handed_in:
        return None
    return annotator


def check_host(site: OneSite, request: Request) -> None:
    if not has_full_access(site, request):
        raise HTTPException(403, "Only a host can see this; an invitation opens the pages of your own work.")
    annotator = judging_annotator(site, request)
    if annotator is not None:
        raise HTTPException(
            403,
            f"This browser judges as {annotator.name}, who sees what others said once all is handed in;"
            " stop judging in it, on the page of your work, to be the host again.",
        )


async def check_own_form(site: OneSite, request: Request) -> None:
    await check_form(site, request)


def store_of(site: OneSite) -> "Store":
    return site.judgements.store()


OneAnnotator = Annotated[Any, Depends(annotator_of)]
OneStore = Annotated[Any, Depends(store_of)]
FORM, HOST = Depends(check_own_form), Depends(check_host)


def set_annotator_cookie(site: Site, answer: Response, token: str) -> Response:
    name = cookie_name(site, "judge")
    answer.set_cookie(name, token, max_age=COOKIE_SECONDS if token else 0, httponly=True, samesite="lax")
    return answer


def done(request: Request, data: dict[str, Any], *, to: str) -> Response:
    """The answer to a successful post: JSON for a program, a redirect for a browser."""
    return json_response(data) if wants_json(request) else RedirectResponse(to, 303)
