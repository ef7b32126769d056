"""The host's routes: start a campaign, invite people, see progress and results, export and import.

An invitation's link is shown once, in the answer to its post; only a hash of its secret is stored. Results are computed
once and cached until there are more judgements.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Depends, Form, Query, UploadFile
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.annotate import by_layer, campaign_view, draw_people, results_view, totals, work_view
from mnemoscope.show.pages.page import Page
from mnemoscope.web import annotator_session as sessions
from mnemoscope.web.annotator_session import FORM, HOST, PLACE, OneStore, done
from mnemoscope.web.middleware.security import came_from_here
from mnemoscope.web.page_routes import OneSite, both, form_page, new_router
from mnemoscope.web.rendering import json_response, path_of, wants_json
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import Store
    from mnemoscope.annotate.campaigns.views import Annotator, Invitation

HOME = "annotate_host.html"
ALONE = 5
"""Keys of the campaign of one person."""
Person = Annotated[str, Form(max_length=1_000, description="Somebody's name")]
Number = Annotated[int, Form(ge=0, le=2**31 - 1)]
OptionalCount = Annotated[str, Form(pattern=r"^[0-9]{0,9}$", description="A number, or nothing for the usual one")]
Ending = Literal["csv", "jsonl"]
TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


router = new_router()
post = partial(router.post, dependencies=[FORM, HOST])


def judged_store(site: OneSite) -> "Store":
    """The store."""
    store = site.judgements.existing_store()
    if store is None:
        raise HTTPException(404, "Nobody has judged anything yet.")
    return store


JudgedStore = Annotated[Any, Depends(judged_store)]


def redirect_annotator(site: OneSite, request: Request) -> Response | None:
    """Redirects annotators who ask for the host's page."""
    invited = not sessions.has_full_access(site, request) and sessions.known_annotator(site, request) is not None
    if sessions.judging_annotator(site, request) is not None or invited:
        ending = ".json" if path_of(request).endswith(".json") else ""
        return RedirectResponse(f"{PLACE}/work{ending}", 303)
    sessions.check_host(site, request)
    return None


@both(router, PLACE, name="annotate")
def home(site: OneSite, sent: Annotated[Any, Depends(redirect_annotator)]) -> Page | Response:
    """The campaign: its people, how far they are, and what to do next."""
    if isinstance(sent, Response):
        return sent
    return Page(HOME, "Annotate", campaign_view(site.judgements.existing_store()), lambda: {"invitation": None})


@both(router, f"{PLACE}/results", name="annotate_results")
def results(site: OneSite, _: Annotated[None, HOST], store: JudgedStore) -> Page:
    """What people found: Figure 2 from their judgements, false alarms on controls, agreement."""
    from mnemoscope.annotate.campaigns.results import compute_results

    # Rows are never removed, so their counts show any change.
    mark = (site.edition().state, site.judgements.version_marks())
    kept = site.judgements.results
    data = kept.get(mark, lambda: results_view(compute_results(store)))

    def extra() -> dict[str, Any]:
        words = site.atlas.reading.words
        named = {name: totals(data[name], words) for name in data if name != "authors"}
        drawing = kept.get((mark, "drawing"), lambda: draw_people(site.edition(), data["figure"]))
        return {"totals": named, "layers": by_layer(data["figure"], words), "drawing": Markup(drawing)}

    return Page("annotate_results.html", "What people found", data, extra)


@router.get(f"{PLACE}/export.{{ending}}", name="exported")
def export(ending: Ending, _: Annotated[None, HOST], store: JudgedStore) -> Response:
    """Every judgement that was ever made, as a file."""
    from mnemoscope.annotate.campaigns.import_export import as_text

    content = as_text(store, ending).encode()
    named = {"Content-Disposition": f'attachment; filename="judgements.{ending}"', "Cache-Control": "no-store"}
    return Response(content, media_type=TYPES[ending], headers=named)


@router.get(f"{PLACE}/join")
def join(
    site: OneSite,
    request: Request,
    invitation: Annotated[str, Query(max_length=200, description="The secret of an invitation")] = "",
) -> Response:
    """Makes this browser that of the annotator who was invited; asks first where another site's page led here."""
    annotator = _find_invited(site, invitation)
    if came_from_here(request.headers):
        return _join_as(site, annotator, invitation)
    values = {"title": "Annotate", "name": annotator.name, "invitation": invitation, "bare": True}
    return form_page(request, "annotate_join.html", values)


@router.post(f"{PLACE}/join", dependencies=[FORM])
def confirm_join(site: OneSite, invitation: Annotated[str, Form(max_length=200)] = "") -> Response:
    """Signs this browser in as the invited annotator, who confirms it."""
    return _join_as(site, _find_invited(site, invitation), invitation)


@router.post(f"{PLACE}/leave", dependencies=[FORM])
def leave(site: OneSite, request: Request) -> Response:
    """Signs this browser out; judgements are kept."""
    to = PLACE if sessions.has_full_access(site, request) else f"{PLACE}/join"
    return sessions.set_annotator_cookie(site, done(request, {"name": None}, to=to), "")


def _find_invited(site: Site, invitation: str) -> "Annotator":
    """The annotator of an invitation."""
    store = site.judgements.existing_store()
    annotator = None if store is None else store.annotator(invitation)
    if annotator is None:
        raise HTTPException(401, "This invitation is not valid, or no longer; ask the sender for another.")
    return annotator


def _join_as(site: Site, annotator: "Annotator", invitation: str) -> Response:
    place = PLACE if annotator.role == "host" else f"{PLACE}/work"
    return sessions.set_annotator_cookie(site, RedirectResponse(place, 303), invitation)


def _show_campaign(request: Request, store: "Store") -> Response:
    return done(request, campaign_view(store), to=PLACE)


def _show_invitation(request: Request, store: "Store", invitation: "Invitation") -> Response:
    link = f"{str(request.base_url).rstrip('/')}{PLACE}/join?{urlencode({'invitation': invitation.token})}"
    data = {"name": invitation.annotator.name, "link": link}
    if wants_json(request):
        return json_response(data, status=201)
    return form_page(request, HOME, {"title": "Annotate", **campaign_view(store), "invitation": data}, status=201)


@post(f"{PLACE}/campaign")
def begin(
    request: Request,
    store: OneStore,
    keys_per_layer: Number = 10,
    controls: OptionalCount = "",
    cases: Number = 100,
    seed: Number = 0,
) -> Response:
    """Draws what is to be judged."""
    count = int(controls) if controls else None
    store.start_campaign(keys_per_layer=keys_per_layer, controls=count, cases=cases, seed=seed)
    return _show_campaign(request, store)


@post(f"{PLACE}/alone")
def begin_alone(site: OneSite, request: Request, store: OneStore, name: Person = "") -> Response:
    """Draws five keys and a control for one person, whose browser this becomes, and leads to the first."""
    per_layer = -(-ALONE // len(store.atlas.layers))
    store.start_campaign(keys_per_layer=per_layer, controls=1, cases=0, keys_in_all=ALONE)
    invitation = store.invite(name)
    first = work_view(store, invitation.annotator)["next"]
    answer = done(request, {"name": invitation.annotator.name, "next": first}, to=f"{PLACE}/items/{first}")
    return sessions.set_annotator_cookie(site, answer, invitation.token)


@post(f"{PLACE}/invite")
def invite(request: Request, store: OneStore, name: Person = "") -> Response:
    """Invites somebody; the answer holds the link, this once."""
    return _show_invitation(request, store, store.invite(name))


@post(f"{PLACE}/renew")
def renew(request: Request, store: OneStore, name: Person = "") -> Response:
    """Makes a new link for somebody who lost theirs; the old one is void."""
    return _show_invitation(request, store, store.renew(name))


@post(f"{PLACE}/withdraw")
def withdraw(request: Request, store: OneStore, name: Person = "") -> Response:
    """Makes somebody's link void; what they judged stays."""
    store.withdraw(name)
    return _show_campaign(request, store)


@post(f"{PLACE}/import", name="take_in")
def import_file(request: Request, store: OneStore, file: UploadFile) -> Response:
    """Adds the judgements of a file that another server exported, or of a sheet."""
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
    return _show_campaign(request, store)


@post(f"{PLACE}/name", name="named")
def choose_name(
    site: OneSite,
    request: Request,
    store: OneStore,
    name: Person = "",
    memory: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Gives this browser the name under which its owner judges memories outside the campaign."""
    to = f"/{MemoryId.parse(memory)}{PLACE}" if memory else PLACE
    folded = " ".join(name.split()).casefold()
    hosts = [one.name for one in store.annotators() if one.role == "host" and one.name.casefold() == folded]
    # A user with full access may continue under a host's name in another browser.
    invitation = store.renew(hosts[0]) if hosts else store.invite(name, role="host")
    answer = done(request, {"name": invitation.annotator.name}, to=to)
    return sessions.set_annotator_cookie(site, answer, invitation.token)
