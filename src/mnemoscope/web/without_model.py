"""What stands at the address of a page that runs the model where none was given: how to have one."""

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
    """Answers at `path` with 404 and both ways to a model.

    `lacking` is what there is no model to do with, `purpose` why one would give it one; `command` does without a
    server, its MODEL replaced by the words that open the one that was mined.
    """

    @both(routes, site, path, name=name, kept=False)
    def page(request: Request) -> Page:
        """How to have what needs a model: there is none here."""
        said = {"status": 404, "message": f"There is no model here to {lacking} with; {HOW}."}
        manifest = site.atlas.manifest
        spec = model_words(manifest, otherwise=manifest.model.spec or "MODEL")
        shown = {"heading": heading, "purpose": purpose, "spec": spec, "command": command.replace("MODEL", spec)}
        return Page("without_model.html", heading, said, lambda: shown, 404)
