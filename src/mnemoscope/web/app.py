"""The application, put together: routers, error pages, the stylesheet and the scripts, and the safety around it all."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mnemoscope.errors import MnemoscopeError
from mnemoscope.web import annotate, browsing, search, trace
from mnemoscope.web.annotator_session import AnnotatorSession
from mnemoscope.web.refusals import refusal, status_of
from mnemoscope.web.rendering import ASSETS, asset_address, asset_bytes
from mnemoscope.web.request_line import path_of
from mnemoscope.web.safety import Safety
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site


def create_app(settings: Settings) -> FastAPI:
    """The application; `app.state.site` is its Site, `app.state.index` its search index.

    Raises AtlasNotFound, AtlasUnfinished, AtlasDamaged, AtlasTooNew; with a model ModelError and ModelDiffers.
    """
    site = Site(settings).with_model()
    session, index = AnnotatorSession(site), search.BackgroundIndex(site)
    app = FastAPI(
        title="Mnemoscope",
        description="Every page of an atlas as data: the address of the page with `.json` at its end.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.site, app.state.index = site, index
    _add_assets(app)
    for routes in (
        *(browsing.router(site), search.router(site, index), annotate.router(session), trace.router(site)),
        browsing.memory_router(site),
    ):
        app.include_router(routes)
    _add_errors(app, site)
    app.add_middleware(Safety, site=site, admits=session.admits)
    return app


def _add_assets(app: FastAPI) -> None:
    @app.get("/static/{version}/{name}", include_in_schema=False)
    def asset(version: str, name: str) -> Response:
        if name not in ASSETS or asset_address(name) != f"/static/{version}/{name}":
            raise HTTPException(404, f"There is no file {name!r} here.")
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(asset_bytes(name), media_type=ASSETS[name], headers=kept)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(asset_bytes("icon.svg"), media_type=ASSETS["icon.svg"])


def _add_errors(app: FastAPI, site: Site) -> None:
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
