"""The page shown in place of one that needs a model: how to get one."""

from fastapi import APIRouter
from starlette.requests import Request

from mnemoscope.atlas.tables import model_words
from mnemoscope.show.pages.page import Page
from mnemoscope.web.page_routes import both
from mnemoscope.web.site import Site

HOW = "start the server with a model: mnemoscope serve ATLAS --model MODEL"


def add_without_model(
    routes: APIRouter, site: Site, path: str, *, name: str, heading: str, lacking: str, purpose: str, command: str
) -> None:
    """Answers at `path` with 404 and two ways to get a model. `lacking` is the missing action, `purpose` the reason to
    load a model; `command` works without a server, with MODEL replaced by the words that open the mined model.
    """

    @both(routes, site, path, name=name, kept=False)
    def page(request: Request) -> Page:
        """How to have what needs a model: there is none here."""
        data = {"status": 404, "message": f"There is no model here to {lacking} with; {HOW}."}
        manifest = site.atlas.manifest
        spec = model_words(manifest, otherwise=manifest.model.spec or "MODEL")
        shown = {"heading": heading, "purpose": purpose, "spec": spec, "command": command.replace("MODEL", spec)}
        return Page("without_model.html", heading, data, lambda: shown, 404)
