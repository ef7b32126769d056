"""Access control and browser policies. Wraps the whole application, so that every page is covered.

* Host: a server on this machine answers only to this machine's names (and to that of --public-url), so that no foreign
  name can be pointed at it.
* Access token: if set, `?token=` once (then a cookie) or `Authorization: Bearer`; compared in constant time.
* Other sites may link to our pages but not load them (as pictures, frames, scripts or prefetches), so that no foreign
  page makes the model work (Sec-Fetch-Site, Sec-Fetch-Dest).
* Posts: refused from another site (Sec-Fetch-Site, Origin), and every form carries a token (`check_form`).
* Bodies: at most BODY bytes. Answers: a content policy without inline script or style, and no exception text.
"""

import hmac
import logging
import re
import secrets
from collections.abc import Callable
from functools import partial
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemoscope.foundation.formatting import show_text
from mnemoscope.web.middleware.error_pages import ANNOTATOR_ONLY, error_page
from mnemoscope.web.rendering import link_to, path_of, query_of
from mnemoscope.web.site import Site

BODY = 1_000_000
ADDRESS = 16_000
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NAMES = {"127.0.0.1", "localhost", "[::1]", "::1"}
FIELD, HEADER = "csrf", "x-csrf-token"

_log = logging.getLogger("mnemoscope.web")
_refusal = partial(error_page, bare=True)


class Security:
    """The outermost layer of the application; `admits` lets requests in without the access token (invitations)."""

    def __init__(self, app: ASGIApp, *, site: Site, admits: Callable[[Site, Request], bool]) -> None:
        self._app = app
        self._site = site
        self._admits = admits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        try:
            answer = self._refuse(request) or self._admit(request)
            if answer is None:
                # Routes answer GET only; the server omits the body for HEAD.
                passed = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self._app(passed, _limit_body(receive), send_safely)
                return
        except HTTPException as problem:
            answer = error_page(request, problem.status_code, str(problem.detail))
        except Exception:
            # The client controls the path, which must not control the terminal.
            _log.exception("%s %s", scope["method"], show_text(scope["path"]))
            if begun:
                raise
            sentence = "This is a bug in mnemoscope; the server's terminal says more."
            answer = error_page(request, 500, sentence)
        await answer(scope, receive, send_safely)

    def _refuse(self, request: Request) -> Response | None:
        headers = request.headers
        length = headers.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,18}", length) or int(length) > BODY:
            return _refusal(request, 413, f"What was sent is larger than {BODY:,} bytes.")
        if len(path_of(request)) + len(query_of(request)) > ADDRESS:
            return _refusal(request, 414, f"The address is longer than {ADDRESS:,} characters.")
        host, public = _name(headers.get("host", "")), self._site.settings.public_host
        if self._site.settings.local and host not in NAMES and (public is None or host != _name(public)):
            return _refusal(request, 403, "This server answers to 127.0.0.1 and localhost only.")
        # A link that was followed is neither embedded in another page nor prefetched.
        followed = headers.get("sec-fetch-dest") in (None, "document") and "sec-purpose" not in headers
        if not came_from_here(headers) and not followed:
            return _refusal(request, 403, "Another site's page loads this; open it by a link or by its address.")
        if request.method not in ("GET", "HEAD", "OPTIONS") and not self._is_same_site(headers):
            return _refusal(request, 403, "This was sent from another site; use the form of this one.")
        return None

    def _is_same_site(self, headers: Headers) -> bool:
        """Whether a post comes from one of our pages, or from no browser."""
        if not came_from_here(headers):
            return False
        settings, origin = self._site.settings, headers.get("origin")
        if origin is None or settings.public_url is None:
            return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        return origin.lower() == f"{urlsplit(settings.public_url).scheme}://{settings.public_host}"

    def _admit(self, request: Request) -> Response | None:
        """None if the request may enter; a request with the token gets its cookie."""
        token = self._site.settings.token
        if token is None:
            return None
        query = parse_qsl(query_of(request), keep_blank_values=True)
        if any(name == "token" and _is_same(value, token) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            answer = RedirectResponse(link_to(path_of(request), rest), 303)
            answer.set_cookie(cookie_name(self._site, "token"), token, httponly=True, samesite="lax")
            return answer
        if has_token(self._site, request):
            return None
        if self._admits(self._site, request):
            request.scope[ANNOTATOR_ONLY] = True
            return None
        return _refusal(request, 401, "This page needs the access token: open the address that the server printed.")


def _limit_body(receive: Receive) -> Receive:
    """The same body, rejected once it grows too large, whatever length the client states."""
    read = 0

    async def receive_limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > BODY:
            raise HTTPException(413, f"What was sent is larger than {BODY:,} bytes.")
        return message

    return receive_limited


def _name(host: str) -> str:
    if host.startswith("["):
        return host.split("]")[0].lower() + "]"
    return host.rsplit(":", 1)[0].lower()


def came_from_here(headers: Headers) -> bool:
    """Whether no other site's page made the request. Browsers send this header only to this machine and over TLS."""
    return headers.get("sec-fetch-site") in (None, "same-origin", "none")


def _is_same(shown: str, token: str) -> bool:
    return hmac.compare_digest(shown.encode(), token.encode())


def has_token(site: Site, request: Request) -> bool:
    token = site.settings.token
    shown = [request.cookies.get(cookie_name(site, "token"), "")]
    shown.append(request.headers.get("authorization", "").removeprefix("Bearer "))
    return token is not None and any(_is_same(one, token) for one in shown)


def cookie_name(site: Site, what: str) -> str:
    """The name of a cookie of this server; a browser shares cookies among ports."""
    return f"mnemoscope_{what}_{site.settings.port}"


def csrf_token(site: Site, request: Request) -> str:
    """The token that this browser's forms must carry: that of its cookie, or a new one (`give_csrf` sends it)."""
    token = request.cookies.get(cookie_name(site, "csrf"), "")
    return token if re.fullmatch(r"[\w-]{43}", token, re.ASCII) else secrets.token_urlsafe(32)


def give_csrf(site: Site, response: Response, token: str) -> None:
    response.set_cookie(cookie_name(site, "csrf"), token, httponly=True, samesite="strict")


async def check_form(site: Site, request: Request) -> None:
    """Raises 403 unless the form (field `csrf`) or the header X-CSRF-Token has the cookie's token."""
    kept = request.cookies.get(cookie_name(site, "csrf"), "")
    shown = request.headers.get(HEADER)
    if shown is None:
        field = (await request.form()).get(FIELD)
        shown = field if isinstance(field, str) else ""
    if not kept or not _is_same(shown, kept):
        raise HTTPException(403, "The form was not made for this browser, or is too old; open the page again.")
