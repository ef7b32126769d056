"""One function, two answers: HTML at its address, and its data as JSON at the same address with `.json`.

    @both(router, site, "/layers/{layer}", template="layer.html")
    def layer(layer: int, sort: str = "memory") -> Page: ...

The function's parameters are FastAPI's: path and query. It returns a Page (or a Response, passed on as it is). Pages
made from the atlas alone are kept and carry an ETag; give `kept=False` for what depends on more than the address, and
`stored=False` for large pages of which there are many: they carry an ETag, and are made again when asked for.
"""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.web.assets import address
from mnemoscope.web.request_line import link_to, path_of, query_of
from mnemoscope.web.safety import csrf_token, give_csrf
from mnemoscope.web.site import Site
from mnemoscope.web.templates import html, json_response

PROBLEM = {
    "description": "One sentence on what was wrong",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["status", "message"],
                "properties": {"status": {"type": "integer"}, "message": {"type": "string"}},
            }
        },
        "text/html": {"schema": {"type": "string"}},
    },
}
REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": PROBLEM, "5XX": PROBLEM}
"""What every route may answer besides its page."""


@dataclass(frozen=True)
class Page:
    """A page: its title, the data that both answers hold, and what only the template needs (made when it is drawn)."""

    title: str
    data: dict[str, Any]
    extra: Callable[[], dict[str, Any]] = field(default=dict)
    status: int = 200


def twin_of(path: str) -> str:
    """The path of the JSON twin: `/layers/3` -> `/layers/3.json`, `/` -> `/index.json`."""
    return "/index.json" if path == "/" else f"{path}.json"


def both(
    router: APIRouter, site: Site, path: str, *, template: str, kept: bool = True, stored: bool = True,
    mark: Callable[..., object] = lambda **_: None,
) -> Callable[[Callable[..., Page | Response]], Callable[..., Page | Response]]:  # fmt: skip
    """A decorator that answers at `path` and at its twin; returns the function as it was.

    A page that is kept is made again when `mark` gives something else for the same parameters.
    """

    def decorate(function: Callable[..., Page | Response]) -> Callable[..., Page | Response]:
        name = f"{function.__module__.rsplit('.', 1)[-1]}_{function.__name__}"
        summary = (inspect.getdoc(function) or path).splitlines()[0]
        for as_json in (True, False):
            # The twin first: `/{name}` would match `/name.json` too.
            router.add_api_route(
                twin_of(path) if as_json else path,
                _endpoint(site, function, template, as_json=as_json, kept=kept, stored=stored, mark=mark),
                methods=["GET"],
                summary=summary,
                operation_id=f"{name}_json" if as_json else name,
                response_class=Response,
                responses={200: _described(as_json), **REFUSALS},
            )
        return function

    return decorate


def _described(as_json: bool) -> dict[str, Any]:
    if as_json:
        return {"description": "The data of the page", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"description": "The page", "content": {"text/html": {"schema": {"type": "string"}}}}


def _endpoint(
    site: Site, function: Callable[..., Page | Response], template: str, *, as_json: bool, kept: bool, stored: bool,
    mark: Callable[..., object],
) -> Callable[..., Response]:  # fmt: skip
    def endpoint(request: Request, **parameters: Any) -> Response:
        def answer() -> Response:
            page = function(**parameters)
            if isinstance(page, Response):
                # A redirection leads to the twin from the twin.
                return _to_twin(page) if as_json and "location" in page.headers else page
            return _answered(site, request, page, template, as_json=as_json, kept=kept)

        return site.read(lambda: respond(request, answer, parameters))

    def respond(request: Request, answer: Callable[[], Response], parameters: dict[str, Any]) -> Response:
        if not kept:
            return answer()
        more = mark(**parameters)
        where = f"{path_of(request)!r}?{query_of(request)}" + ("" if more is None else f" {more}")
        # With a model pages have links to traces.
        model = f" {site.settings.model} {site.settings.force_model}"
        tag = f'"{site.state}-{hashlib.sha256((where + model).encode()).hexdigest()[:16]}-{_version()}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "private, no-cache"})
        body, status, kind = site.pages.get(("page", where), lambda: _parts(answer())) if stored else _parts(answer())
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        return Response(body, status, media_type=kind, headers=headers)

    own = inspect.signature(function)
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    rest = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own.parameters.values()]
    endpoint.__signature__ = inspect.Signature([first, *rest])  # type: ignore[attr-defined]
    endpoint.__name__ = function.__name__
    endpoint.__doc__ = function.__doc__
    return endpoint


def _to_twin(answer: Response) -> Response:
    path, mark, query = answer.headers["location"].partition("?")
    return RedirectResponse(f"{twin_of(path)}{mark}{query}", answer.status_code)


def _parts(answer: Response) -> tuple[bytes, int, str]:
    return bytes(answer.body), answer.status_code, answer.media_type or "text/html"


def _version() -> str:
    return address("style.css").split("/")[2][:6] + address("script.js").split("/")[2][:6]


def _answered(site: Site, request: Request, page: Page, template: str, *, as_json: bool, kept: bool) -> Response:
    if as_json:
        return json_response(page.data, status=page.status)
    values = {"title": page.title, "twin": _twin_address(request), **page.data, **page.extra()}
    if kept:
        return Response(html(site, request, template, values), page.status, media_type="text/html")
    token = csrf_token(site, request)
    text = html(site, request, template, values | {"csrf": token})
    answer = Response(text, page.status, media_type="text/html", headers={"Cache-Control": "no-store"})
    give_csrf(site, answer, token)
    return answer


def _twin_address(request: Request) -> str:
    """The twin with the same query."""
    query = urlencode(parse_qsl(query_of(request), keep_blank_values=True))
    return link_to(twin_of(path_of(request)), query)
