"""The pages shown in place of those that need a model: how to get one."""

from mnemoscope.atlas.tables import model_words
from mnemoscope.show.pages.page import Page
from mnemoscope.web.page_routes import OneSite, both, new_router
from mnemoscope.web.site import Site

HOW = "start the server with a model: mnemoscope serve ATLAS --model MODEL"
router = new_router()


@both(router, "/trace", name="trace")
def trace(site: OneSite) -> Page:
    """How to have what needs a model: there is none here."""
    purpose = "follow a prompt through the layers, and to switch memories off"
    return _explain(site, "Trace a prompt", purpose, 'mnemoscope trace MODEL "a prompt" --set L0.M0=0')


@both(router, "/audit", name="audit")
def audit(site: OneSite) -> Page:
    """How to have what needs a model: there is none here."""
    return _explain(
        site, "Audit a string", "ask which memories carry a string", "mnemoscope audit MODEL --secrets FILE"
    )


def _explain(site: Site, heading: str, purpose: str, command: str) -> Page:
    """Status 404 and two ways to get a model. `purpose` is the reason to load one; `command` works without a server,
    with MODEL replaced by the words that open the mined model.
    """
    data = {"status": 404, "message": f"There is no model here to {heading[0].lower()}{heading[1:]} with; {HOW}."}
    manifest = site.atlas.manifest
    spec = model_words(manifest, otherwise=manifest.model.spec or "MODEL")
    shown = {"heading": heading, "purpose": purpose, "spec": spec, "command": command.replace("MODEL", spec)}
    return Page("without_model.html", heading, data, lambda: shown, 404)
