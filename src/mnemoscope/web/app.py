"""Assembles the application: routes, error pages, style and scripts, and the security around them."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mnemoscope.web.annotator_session import AnnotatorSession
from mnemoscope.web.error_pages import add_error_pages
from mnemoscope.web.page_routes import REFUSALS
from mnemoscope.web.prefix import AddressPrefix
from mnemoscope.web.rendering import ASSETS, asset_address, asset_bytes
from mnemoscope.web.routes import annotate_host, annotate_item, audit, browsing, search, trace
from mnemoscope.web.security import Security
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site


def create_app(settings: Settings) -> FastAPI:
    """The application; `app.state.site` is its Site, `app.state.index` its search index. Raises AtlasNotFound,
    AtlasUnfinished, AtlasDamaged, AtlasTooNew; with a model ModelError and ModelDiffers.
    """
    site = Site(settings)
    session, index = AnnotatorSession(site), search.BackgroundIndex(site)
    app = FastAPI(
        title="Mnemoscope",
        description="Every page of an atlas as data: the address of the page with `.json` at its end.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,
        responses=REFUSALS,
    )
    app.state.site, app.state.index = site, index
    _add_assets(app)
    # Routes of an included router would be built twice.
    routes = app.router
    browsing.add_pages(routes, site)
    search.add_pages(routes, site, index)
    annotate_host.add_pages(routes, session)
    annotate_item.add_pages(routes, session)
    trace.add_pages(routes, site)
    audit.add_pages(routes, site)
    browsing.add_memories(routes, site)
    add_error_pages(app, site)
    app.add_middleware(Security, site=site, admits=session.admits)
    app.add_middleware(AddressPrefix, settings=settings)
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
