"""One function, two answers: HTML at its address, and its data as JSON at the same address with `.json`.

    @both(router, site, "/layers/{layer}", name="layers_layer")
    def layer(request: Request, layer: int, sort: str = "memory") -> Page: ...

The function's parameters are FastAPI's. It returns a Page (or a Response, passed on unchanged). Pages made from the
atlas alone are cached and have an ETag. Use `kept=False` for pages that depend on more than the address, and
`stored=False` for many large pages: they have an ETag, but are made for each request.
"""

import hashlib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.show.pages.page import Page
from mnemoscope.web.rendering import asset_address, html, json_response, link_to, path_of, query_of
from mnemoscope.web.security import csrf_token, give_csrf
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
REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": PROBLEM, "5XX": PROBLEM}
REVALIDATED = "private, no-cache"

PageFunction = Callable[..., Page | Response]


def twin_of(path: str) -> str:
    """The path of the JSON twin: `/layers/3` -> `/layers/3.json`, `/` -> `/index.json`."""
    return "/index.json" if path == "/" else f"{path}.json"


def both(
    router: APIRouter, site: Site, path: str, *, name: str, kept: bool = True, stored: bool = True,
    mark: Callable[..., object] = lambda **_: None,
) -> Callable[[PageFunction], PageFunction]:  # fmt: skip
    """A decorator that answers at `path` and at its twin; returns the function unchanged. `name` is the operation id in
    the OpenAPI document. A cached page is made again when `mark` changes for the same parameters.
    """

    def decorate(function: PageFunction) -> PageFunction:
        def add(path: str, operation: str, media: str, schema: str, said: str, *, as_json: bool) -> None:
            @wraps(function)
            def endpoint(request: Request, **parameters: Any) -> Response:
                def answer() -> Response:
                    page = function(request, **parameters)
                    if isinstance(page, Response):
                        # A twin redirects to a twin.
                        return _to_twin(page) if as_json and "location" in page.headers else page
                    return _response(site, request, page, as_json=as_json, kept=kept)

                return site.read(
                    lambda: _revalidate(site, request, answer, mark(**parameters), stored) if kept else answer()
                )

            router.add_api_route(
                path,
                endpoint,
                methods=["GET"],
                summary=(inspect.getdoc(function) or path).splitlines()[0],
                operation_id=operation,
                response_model=None,
                responses={200: {"description": said, "content": {media: {"schema": {"type": schema}}}}},
            )

        # The twin first: `/{name}` would match `/name.json` too.
        add(twin_of(path), f"{name}_json", "application/json", "object", "The data of the page", as_json=True)
        add(path, name, "text/html", "string", "The page", as_json=False)
        return function

    return decorate


def _revalidate(
    site: Site, request: Request, answer: Callable[[], Response], mark: object, stored: bool
) -> Response:
    """The page with its ETag, cached if `stored`; only the ETag if the browser has the page."""
    where = f"{path_of(request)!r}?{query_of(request)}" + ("" if mark is None else f" {mark}")
    # With a model, pages link to traces.
    model = f" {site.settings.model} {site.settings.opening} {site.settings.force_model}"
    version = "".join(asset_address(name).split("/")[2][:6] for name in ("style.css", "script.js"))
    tag = f'"{site.edition().state}-{hashlib.sha256((where + model).encode()).hexdigest()[:16]}-{version}"'
    headers = {"ETag": tag, "Cache-Control": REVALIDATED}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)

    def make() -> tuple[bytes, int, str]:
        made = answer()
        return bytes(made.body), made.status_code, made.media_type or "text/html"

    body, status, kind = site.edition().pages.get(("page", where), make) if stored else make()
    return Response(body, status, media_type=kind, headers=headers)


def _to_twin(answer: Response) -> Response:
    path, mark, query = answer.headers["location"].partition("?")
    return RedirectResponse(f"{twin_of(path)}{mark}{query}", answer.status_code)


def _response(site: Site, request: Request, page: Page, *, as_json: bool, kept: bool) -> Response:
    if as_json:
        return json_response(page.data, status=page.status)
    query = urlencode(parse_qsl(query_of(request), keep_blank_values=True))
    twin = link_to(twin_of(path_of(request)), query)
    values = {"twin": twin, **page.values()}
    if kept:
        return Response(html(site, request, page.template, values), page.status, media_type="text/html")
    return form_page(site, request, page.template, values, status=page.status)


def form_page(site: Site, request: Request, template: str, values: dict[str, Any], *, status: int = 200) -> Response:
    """A page that is never cached, with the token that this browser's forms must carry."""
    token = csrf_token(site, request)
    text = html(site, request, template, values | {"csrf": token})
    answer = Response(text, status, media_type="text/html", headers={"Cache-Control": "no-store"})
    give_csrf(site, answer, token)
    return answer
