"""Assembles the application: routes, error pages, style and scripts, and the security around them."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mnemoscope.show.pages.contents import PAGES
from mnemoscope.web.annotator_session import admits
from mnemoscope.web.middleware.error_pages import HANDLERS
from mnemoscope.web.middleware.prefix import AddressPrefix
from mnemoscope.web.middleware.security import Security
from mnemoscope.web.page_routes import REFUSALS, both, new_router
from mnemoscope.web.rendering import ASSETS, asset_address, asset_bytes
from mnemoscope.web.routes import annotate_host, annotate_item, model, search
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site

router, memories = new_router(), new_router()
"""The pages made from the atlas alone. An address of a memory matches any name, and so is added last."""

for _page in PAGES:
    if _page.make is not None:
        _router = memories if _page.path.startswith("/{") else router
        both(_router, _page.path, name=_page.name, kind=_page)(_page.make)


def create_app(settings: Settings) -> FastAPI:
    """The application; `app.state.site` is its Site, `app.state.index` its search index."""
    site = Site(settings)
    if settings.annotations is not None:
        site.judgements.store()
    app = FastAPI(
        title="Mnemoscope",
        description="Every page of an atlas as data: the address of the page with `.json` at its end.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,
        responses=REFUSALS,
        exception_handlers=HANDLERS,
    )
    app.state.site, app.state.index = site, search.BackgroundIndex(site)
    running = model.lacking if site.model is None else model.router
    # Routes of an included router would be built again for each application.
    for one in (router, search.router, annotate_host.router, annotate_item.router, running, memories):
        app.router.routes.extend(one.routes)
    app.add_middleware(Security, site=site, admits=admits)
    app.add_middleware(AddressPrefix, settings=settings)
    return app


@router.get("/static/{version}/{name}", include_in_schema=False)
def asset(version: str, name: str) -> Response:
    if name not in ASSETS or asset_address(name) != f"/static/{version}/{name}":
        raise HTTPException(404, f"There is no file {name!r} here.")
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset_bytes(name), media_type=ASSETS[name], headers=kept)


@router.get("/favicon.ico", include_in_schema=False)
def icon() -> Response:
    return Response(asset_bytes("icon.svg"), media_type=ASSETS["icon.svg"])
