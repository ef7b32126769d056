"""The application, put together: routers, error pages, the stylesheet and the script, and the safety around it all.

A module of pages has `NAV` ((label, address) pairs for the head of every page) and `router(site) -> APIRouter`; it is
named once, in ROUTERS. `browse` comes last because it answers `/L10.M222`, any name at the top.
"""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mnemoscope.errors import MnemoscopeError
from mnemoscope.web import annotate, browse, layers, questions, searching, tracing_pages
from mnemoscope.web.assets import TYPES, address, content
from mnemoscope.web.refusals import refusal, status_of
from mnemoscope.web.request_line import path_of
from mnemoscope.web.safety import Safety
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site

ROUTERS = (layers, searching, questions, annotate, tracing_pages, browse)


def create_app(settings: Settings) -> FastAPI:
    """The application; `app.state.site` is its Site.

    Raises AtlasNotFound, AtlasUnfinished, AtlasDamaged, AtlasTooNew; with a model ModelError and ModelDiffers.
    """
    site = Site(settings).with_model()
    app = FastAPI(
        title="Mnemoscope",
        description="Every page of an atlas as data: the address of the page with `.json` at its end.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.site = site
    _static(app)
    site.nav += [("Overview", "/")]
    for module in ROUTERS:
        site.nav += module.NAV
        app.include_router(module.router(site))
    _errors(app, site)
    app.add_middleware(Safety, site=site)
    return app


def _static(app: FastAPI) -> None:
    @app.get("/static/{version}/{name}", include_in_schema=False)
    def asset(version: str, name: str) -> Response:
        if name not in TYPES or address(name) != f"/static/{version}/{name}":
            raise HTTPException(404, f"There is no file {name!r} here.")
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content(name), media_type=TYPES[name], headers=kept)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(content("icon.svg"), media_type=TYPES["icon.svg"])


def _errors(app: FastAPI, site: Site) -> None:
    @app.exception_handler(MnemoscopeError)
    def ours(request: Request, problem: MnemoscopeError) -> Response:
        return refusal(site, request, status_of(problem), str(problem))

    @app.exception_handler(HTTPException)
    def http(request: Request, problem: HTTPException) -> Response:
        sentence = str(problem.detail)
        if problem.status_code == 404 and sentence == "Not Found":
            sentence = f"There is no page {path_of(request)!r}."
        answer = refusal(site, request, problem.status_code, sentence)
        answer.headers.update(problem.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        where = [str(step) for step in first["loc"] if step not in ("query", "path", "body")]
        sentence = f"{'.'.join(where) or 'what was sent'}: {first['msg'].rstrip('.')}."
        return refusal(site, request, 400, sentence[0].upper() + sentence[1:])
