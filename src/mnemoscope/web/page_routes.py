"""One function, two answers: HTML at its address, and its data as JSON at the same address with `.json`.

    @both(router, "/search", name="search")
    def search(site: OneSite, q: str = "") -> Page: ...

The function's parameters are FastAPI's. It returns a Page (or a Response, passed on unchanged). Pages of the registry
(show/pages/contents.py) are made from the atlas alone, and have an ETag. Routers are of all applications of this
process; what differs among these is in `app.state`.
"""

import hashlib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from mnemoscope.show.pages.edition import Data
from mnemoscope.show.pages.page import Page, PageKind
from mnemoscope.web.middleware.security import csrf_token, give_csrf
from mnemoscope.web.rendering import asset_address, html, json_response, link_to, path_of, query_of
from mnemoscope.web.site import Site

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
REFUSALS: dict[int | str, Data] = {"4XX": PROBLEM, "5XX": PROBLEM}

PageFunction = Callable[..., Page | Response]
_REQUEST = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)


async def site_of(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


OneSite = Annotated[Site, Depends(site_of)]


def new_router() -> APIRouter:
    return APIRouter(redirect_slashes=False, default_response_class=Response, responses=REFUSALS)


def twin_of(path: str) -> str:
    """The path of the JSON twin: `/layers/3` -> `/layers/3.json`, `/` -> `/index.json`."""
    return "/index.json" if path == "/" else f"{path}.json"


def both(
    router: APIRouter, path: str, *, name: str, kind: PageKind | None = None
) -> Callable[[PageFunction], PageFunction]:
    """A decorator that answers at `path` and at its twin; returns the function unchanged. `name` is the operation id in
    the OpenAPI document. Without a `kind` the page depends on more than the address, and browsers keep none.
    """

    def decorate(function: PageFunction) -> PageFunction:
        declared = [*inspect.signature(function).parameters.values()]
        if kind is not None:  # made from an edition, and the query as `address`
            declared = [
                one.replace(annotation=Annotated[one.annotation, Query()], default=one.empty)
                if one.name == "address"
                else one
                for one in declared[1:]
            ]

        def add(path: str, operation: str, media: str, schema: str, description: str, *, as_json: bool) -> None:
            @wraps(function)
            def endpoint(request: Request, **parameters: Any) -> Response:
                site: Site = request.app.state.site

                def answer() -> Response:
                    page = function(**parameters) if kind is None else kind.make_page(site.edition(), parameters)
                    return _response(request, page, as_json=as_json, kept=kind is not None)

                return site.read(answer if kind is None else lambda: _revalidate(request, answer, kind, parameters))

            endpoint.__signature__ = inspect.Signature([_REQUEST, *declared])  # type: ignore[attr-defined]
            router.add_api_route(
                path,
                endpoint,
                methods=["GET"],
                summary=(inspect.getdoc(function) or path).splitlines()[0],
                operation_id=operation,
                response_model=None,
                responses={200: {"description": description, "content": {media: {"schema": {"type": schema}}}}},
            )

        # The twin first: `/{name}` would match `/name.json` too.
        add(twin_of(path), f"{name}_json", "application/json", "object", "The data of the page", as_json=True)
        add(path, name, "text/html", "string", "The page", as_json=False)
        return function

    return decorate


def _revalidate(request: Request, answer: Callable[[], Response], kind: PageKind, parameters: Data) -> Response:
    """The page with its ETag, cached if it is stored; only the ETag if the browser has the page."""
    site: Site = request.app.state.site
    mark = kind.mark(site.edition(), **parameters)
    where = f"{path_of(request)!r}?{query_of(request)}" + ("" if mark is None else f" {mark}")
    # With a model, pages link to traces; with two, to what differs.
    named = site.settings
    model = f" {named.model} {named.opening} {named.force_model} {named.other} {named.other_adapter}"
    version = "".join(asset_address(name).split("/")[2][:6] for name in ("style.css", "script.js"))
    tag = f'"{site.edition().state}-{hashlib.sha256((where + model).encode()).hexdigest()[:16]}-{version}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)

    def make() -> tuple[bytes, int, str]:
        made = answer()
        return bytes(made.body), made.status_code, made.media_type or "text/html"

    body, status, media = site.edition().pages.get(("page", where), make) if kind.stored else make()
    return Response(body, status, media_type=media, headers=headers)


def _response(request: Request, page: Page | Response, *, as_json: bool, kept: bool) -> Response:
    if isinstance(page, Response):
        if as_json and "location" in page.headers:  # a twin redirects to a twin
            to, mark, query = page.headers["location"].partition("?")
            page.headers["location"] = f"{twin_of(to)}{mark}{query}"
        return page
    if as_json:
        return json_response(page.data, status=page.status)
    query = urlencode(parse_qsl(query_of(request), keep_blank_values=True))
    values = {"twin": link_to(twin_of(path_of(request)), query), **page.values()}
    if kept:
        return Response(html(request, page.template, values), page.status, media_type="text/html")
    return form_page(request, page.template, values, status=page.status)


def form_page(request: Request, template: str, values: Data, *, status: int = 200) -> Response:
    site: Site = request.app.state.site
    token = csrf_token(site, request)
    text = html(request, template, values | {"csrf": token})
    answer = Response(text, status, media_type="text/html", headers={"Cache-Control": "no-store"})
    give_csrf(site, answer, token)
    return answer
