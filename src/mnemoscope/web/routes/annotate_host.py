"""The host's routes: start a campaign, invite people, see progress and results, export and import.

An invitation's link is shown once, in the answer to its post; only a hash of its secret is stored. Results are computed
once and cached until there are more judgements.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, UploadFile
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.annotate_host import by_layer, campaign_view, draw_people, results_view, totals
from mnemoscope.show.pages.page import Page
from mnemoscope.web.annotator_session import PLACE, AnnotatorSession, done
from mnemoscope.web.page_routes import both, form_page
from mnemoscope.web.rendering import json_response, path_of, wants_json
from mnemoscope.web.security import came_from_here

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.views import Annotator, Invitation

HOME = "annotate_host.html"
Person = Annotated[str, Form(max_length=1_000, description="Somebody's name")]
Number = Annotated[int, Form(ge=0, le=2**31 - 1)]
OptionalCount = Annotated[str, Form(pattern=r"^\d{0,9}$", description="A number, or nothing for the usual one")]
Ending = Literal["csv", "jsonl"]
TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


def add_pages(routes: APIRouter, session: AnnotatorSession) -> None:
    site = session.site
    tables, drawings = Cache(1), Cache(1)
    existing = Depends(session.judged_store)

    def redirect_annotator(request: Request) -> Response | None:
        """Redirects annotators who ask for the host's page; raises 403 without access."""
        invited = not session.has_full_access(request) and session.known_annotator(request) is not None
        if session.judging(request) is not None or invited:
            ending = ".json" if path_of(request).endswith(".json") else ""
            return RedirectResponse(f"{PLACE}/work{ending}", 303)
        session.host(request)
        return None

    @both(routes, site, PLACE, name="annotate_host_home", kept=False)
    def home(request: Request, sent: Annotated[Any, Depends(redirect_annotator)]) -> Page | Response:
        """The campaign: its people, how far they are, and what to do next."""
        if isinstance(sent, Response):
            return sent
        return Page(HOME, "Annotate", campaign_view(site.judgements.existing_store()), lambda: {"invitation": None})

    @both(routes, site, f"{PLACE}/results", name="annotate_host_results", kept=False)
    def results(request: Request, _: Annotated[None, Depends(session.host)], store: Annotated[Any, existing]) -> Page:
        """What people found: Figure 2 from their judgements, false alarms on controls, agreement."""
        from mnemoscope.annotate.campaigns.results import compute_results

        # Rows are never removed, so their counts show any change.
        mark = (site.edition().state, site.judgements.version_marks())
        data = tables.get(mark, lambda: results_view(compute_results(store)))

        def extra() -> dict[str, Any]:
            named = {name: totals(data[name]) for name in data if name != "authors"}
            drawing = drawings.get(mark, lambda: draw_people(site.edition(), data["figure"]))
            return {"totals": named, "layers": by_layer(data["figure"]), "drawing": Markup(drawing)}

        return Page("annotate_results.html", "What people found", data, extra)

    @routes.get(f"{PLACE}/export.{{ending}}", name="exported")
    def export(ending: Ending, _: Annotated[None, Depends(session.host)], store: Annotated[Any, existing]) -> Response:
        """Every judgement that was ever made, as a file."""
        from mnemoscope.annotate.campaigns.import_export import as_text

        content = as_text(store, ending).encode()
        named = {"Content-Disposition": f'attachment; filename="judgements.{ending}"', "Cache-Control": "no-store"}
        return Response(content, media_type=TYPES[ending], headers=named)

    @routes.get(f"{PLACE}/join")
    def join(
        request: Request,
        invitation: Annotated[str, Query(max_length=200, description="The secret of an invitation")] = "",
    ) -> Response:
        """Makes this browser that of the annotator who was invited; asks first where another site's page led here."""
        annotator = _find_invited(session, invitation)
        if came_from_here(request.headers):
            return _join_as(session, annotator, invitation)
        values = {"title": "Annotate", "name": annotator.name, "invitation": invitation, "bare": True}
        return form_page(site, request, "annotate_join.html", values)

    @routes.post(f"{PLACE}/join", dependencies=[Depends(session.check_form)])
    def confirm_join(invitation: Annotated[str, Form(max_length=200)] = "") -> Response:
        """Makes this browser that of the annotator who was invited, and who says so."""
        return _join_as(session, _find_invited(session, invitation), invitation)

    @routes.post(f"{PLACE}/leave", dependencies=[Depends(session.check_form)])
    def leave(request: Request) -> Response:
        """Makes this browser nobody's; what was judged stays."""
        to = PLACE if session.has_full_access(request) else f"{PLACE}/join"
        return session.set_annotator_cookie(done(request, {"name": None}, to=to), "")

    _add_posts(routes, session)


def _find_invited(session: AnnotatorSession, invitation: str) -> "Annotator":
    """The annotator of an invitation. Raises 401 if it is not valid."""
    store = session.site.judgements.existing_store()
    annotator = None if store is None else store.annotator(invitation)
    if annotator is None:
        raise HTTPException(401, "This invitation is not valid, or no longer; ask whoever sent it for another.")
    return annotator


def _join_as(session: AnnotatorSession, annotator: "Annotator", invitation: str) -> Response:
    place = PLACE if annotator.role == "host" else f"{PLACE}/work"
    return session.set_annotator_cookie(RedirectResponse(place, 303), invitation)


def _add_posts(routes: APIRouter, session: AnnotatorSession) -> None:
    post = partial(routes.post, dependencies=[Depends(session.check_form), Depends(session.host)])
    opened = Depends(session.site.judgements.store)

    def show_campaign(request: Request, store: Any) -> Response:
        return done(request, campaign_view(store), to=PLACE)

    def show_invitation(request: Request, store: Any, invitation: "Invitation") -> Response:
        link = f"{str(request.base_url).rstrip('/')}{PLACE}/join?{urlencode({'invitation': invitation.token})}"
        data = {"name": invitation.annotator.name, "link": link}
        if wants_json(request):
            return json_response(data, status=201)
        values = {"title": "Annotate", **campaign_view(store), "invitation": data}
        return form_page(session.site, request, HOME, values, status=201)

    @post(f"{PLACE}/campaign")
    def begin(
        request: Request, store: Annotated[Any, opened], keys_per_layer: Number = 10, controls: OptionalCount = "",
        cases: Number = 100, seed: Number = 0,
    ) -> Response:  # fmt: skip
        """Draws what is to be judged."""
        count = int(controls) if controls else None
        store.start_campaign(keys_per_layer=keys_per_layer, controls=count, cases=cases, seed=seed)
        return show_campaign(request, store)

    @post(f"{PLACE}/invite")
    def invite(request: Request, store: Annotated[Any, opened], name: Person = "") -> Response:
        """Invites somebody; the answer holds the link, this once."""
        return show_invitation(request, store, store.invite(name))

    @post(f"{PLACE}/renew")
    def renew(request: Request, store: Annotated[Any, opened], name: Person = "") -> Response:
        """Makes a new link for somebody who lost theirs; the old one is void."""
        return show_invitation(request, store, store.renew(name))

    @post(f"{PLACE}/withdraw")
    def withdraw(request: Request, store: Annotated[Any, opened], name: Person = "") -> Response:
        """Makes somebody's link void; what they judged stays."""
        store.withdraw(name)
        return show_campaign(request, store)

    @post(f"{PLACE}/import", name="take_in")
    def import_file(request: Request, store: Annotated[Any, opened], file: UploadFile) -> Response:
        """Adds the judgements of a file that another server exported."""
        from mnemoscope.annotate.campaigns.import_export import import_judgements

        ending = (file.filename or "").rpartition(".")[2].lower()
        if ending not in TYPES:
            raise HTTPException(400, "Give a file whose name ends in .csv or .jsonl, as the export writes them.")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"judgements.{ending}")
            path.write_bytes(file.file.read())
            try:
                import_judgements(store, path)
            except AnnotationError as problem:
                # The message must name the uploaded file, not the temporary one.
                raise AnnotationError(str(problem).replace(str(path), path.name)) from problem.__cause__
        return show_campaign(request, store)

    @post(f"{PLACE}/name", name="named")
    def choose_name(
        request: Request, store: Annotated[Any, opened], name: Person = "",
        memory: Annotated[str, Form(max_length=100)] = "",
    ) -> Response:  # fmt: skip
        """Gives this browser the name under which its owner judges memories outside the campaign."""
        to = f"/{MemoryId.parse(memory)}{PLACE}" if memory else PLACE
        folded = " ".join(name.split()).casefold()
        hosts = [one.name for one in store.annotators() if one.role == "host" and one.name.casefold() == folded]
        # A user with full access may continue under a host's name in another browser.
        invitation = store.renew(hosts[0]) if hosts else store.invite(name, role="host")
        return session.set_annotator_cookie(done(request, {"name": invitation.annotator.name}, to=to), invitation.token)
