"""The annotator's routes: the list of items, one item at a time, and a post for every judgement.

Posts answer a program with JSON and a browser without script with a redirect. A judgement is sent with its own key and
stored once, however often it is sent.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Form, Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.errors import AnnotationError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages import annotate as judging
from mnemoscope.show.pages.edition import Data
from mnemoscope.show.pages.page import Page
from mnemoscope.web import annotator_session as sessions
from mnemoscope.web.annotator_session import FORM, PLACE, MaybeAnnotator, OneAnnotator, OneStore, done
from mnemoscope.web.middleware.error_pages import status_of
from mnemoscope.web.page_routes import OneSite, both, form_page, new_router
from mnemoscope.web.rendering import wants_json

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import SavedJudgement, Store
    from mnemoscope.annotate.campaigns.views import Annotator, CaseView, KeyView

Code = Annotated[str, Path(max_length=40, description="An item of the campaign, as the list of the work names it")]
Shown = Annotated[str, Query(pattern=r"^([0-9]{1,2}|new)?$", description="The pattern to edit: its number, or `new`")]
Pattern = Annotated[str, Form(pattern=r"^[0-9]{0,2}$", description="The pattern's number; empty for a new one")]
Key = Annotated[str, Form(max_length=100, description="Another for every judgement; the same to send one again")]
Name = Annotated[str, Path(max_length=100, description="A memory, such as L10.M222")]
ITEMS = PLACE + "/items/{code}"
_MEMORY = re.compile(r"L[0-9]{1,9}(\.[ES][0-9]{1,9})?\.M[0-9]{1,9}")
"""The code of a memory outside the campaign is its name."""


class PatternForm(BaseModel):
    """The form of a pattern; the store refuses what cannot be."""

    kind: str = Field("", max_length=20, description="shallow, semantic or both")
    description: str = Field("", max_length=5_000, description="What the prefixes share")
    marks: list[int] = Field([], max_length=100, description="Numbers of the prefixes that share the pattern")
    pattern: str = Field("", pattern=r"^[0-9]{0,2}$", description="The pattern's number; empty for a new one")
    key: str = Field("", max_length=100, description="Another for every judgement; the same to send one again")

    def judgement(self) -> Data:
        number = int(self.pattern) if self.pattern else None
        return {"kind": self.kind, "description": self.description, "marks": self.marks, "pattern": number}


@dataclass(frozen=True)
class Visit:
    """An annotator at an item: what a post needs to store a judgement, and to answer."""

    request: Request
    store: "Store"
    annotator: "Annotator"
    view: "KeyView | CaseView"
    """The item as they saw it before the post."""

    @property
    def code(self) -> str:
        return self.view.code

    def holds_new(self, given: Data) -> bool:
        """Whether the form holds something that is not stored yet."""
        if not given["marks"] and not given["description"].strip():
            return False
        patterns = judging.judged_item(self.view).get("patterns", ())
        stored = next((one for one in patterns if one["pattern"] == given["pattern"]), None)
        if stored is None:
            return True
        form = (given["kind"], " ".join(given["description"].split()), sorted(set(given["marks"])))
        return form != (stored["kind"], stored["description"], sorted(stored["marks"]))

    def stay(self, saved: "SavedJudgement", *names: str, at: int | None = None) -> Response:
        """Redirects to the item's page, at this pattern; `names` are the fields of the judgement in the JSON answer."""
        memory = judging.judged_item(self.view)["memory"]
        place = f"{PLACE}/items/{self.code}" if memory is None else f"/{memory}{PLACE}"
        data = {name: getattr(saved, name) for name in (*names, "again")}
        return done(self.request, data, to=place if at is None else f"{place}?pattern={at}")

    def go_on(self, saved: "SavedJudgement") -> Response:
        """Redirects to the next unfinished item, or to the list."""
        following = judging.after(self.store.places(self.annotator), self.code)
        to = f"{PLACE}/work" if following is None else f"{PLACE}/items/{following}"
        return done(self.request, {"finished": True, "again": saved.again, "next": to}, to=to)


router = new_router()
post = partial(router.post, dependencies=[FORM])


@both(router, f"{PLACE}/work", name="annotate_work")
def work(annotator: OneAnnotator, store: OneStore) -> Page:
    """What the annotator has to judge, and how far it is."""
    data = judging.work_view(store, annotator)
    return Page("annotate_work.html", "Your work", data, lambda: {"bare": True, "key": judging.new_key()})


@both(router, ITEMS, name="annotate_item")
def item(code: Code, annotator: OneAnnotator, store: OneStore, pattern: Shown = "") -> Page | Response:
    """One item: prefixes to mark, or a composition to call related or distant."""
    if _MEMORY.fullmatch(code):
        return RedirectResponse(f"/{code}{PLACE}", 303)
    data = judging.item_view(store, annotator, _view(store, annotator, code))
    if data["memory"] is not None:
        return RedirectResponse(f"/{data['memory']}{PLACE}", 303)
    return judging.item_page(data, annotator, pattern)


@both(router, "/{name}" + PLACE, name="annotate_memory")
def memory(site: OneSite, name: Name, annotator: MaybeAnnotator, pattern: Shown = "") -> Page:
    """A memory that the reader wants to judge, outside the campaign."""
    wanted = site.atlas[MemoryId.parse(name)].id
    if annotator is None:
        data: Data = {"memory": str(wanted), "code": None, "name": None}
        return Page(judging.MEMORY, f"Annotate {wanted}", data)
    store = site.judgements.store()
    data = judging.item_view(store, annotator, store.view_memory(wanted, annotator))
    return judging.item_page(data, annotator, pattern)


def _view(store: "Store", annotator: "Annotator", code: str) -> "KeyView | CaseView":
    try:
        return store.view(code, annotator)
    except AnnotationError as problem:
        raise HTTPException(404 if problem.__cause__ is None else status_of(problem), f"{problem}.") from problem


def visit_item(site: OneSite, request: Request, code: Code, annotator: OneAnnotator, store: OneStore) -> Visit:
    """The judged item; a memory's name adds it."""
    if _MEMORY.fullmatch(code) and sessions.has_full_access(site, request):
        code = store.choose(MemoryId.parse(code))
    return Visit(request, store, annotator, _view(store, annotator, code))


def _show_problem(visit: Visit, problem: AnnotationError, draft: Data | None = None) -> Response:
    """The item's page with the problem and the draft; a program gets only the sentence."""
    if wants_json(visit.request) or status_of(problem) != 409:
        raise problem
    data = judging.item_view(visit.store, visit.annotator, visit.store.view(visit.code, visit.annotator))
    page = judging.item_page(data, visit.annotator, problem=str(problem), draft=draft)
    return form_page(visit.request, page.template, page.values(), status=409)


OneVisit = Annotated[Visit, Depends(visit_item)]


@post(f"{ITEMS}/save")
def save(visit: OneVisit, form: Annotated[PatternForm, Form()]) -> Response:
    """Stores one pattern of the annotator in one item."""
    given = form.judgement()
    try:
        saved = visit.store.save(visit.code, visit.annotator, **given, key=form.key or None)
    except AnnotationError as problem:
        return _show_problem(visit, problem, given)
    return visit.stay(saved, "pattern", "made_at", at=saved.pattern)


@post(f"{ITEMS}/retract")
def retract(visit: OneVisit, pattern: Pattern = "", key: Key = "") -> Response:
    """Takes one of the annotator's patterns back."""
    if not pattern:
        raise HTTPException(400, "Say which pattern is to be taken back.")
    saved = visit.store.retract(visit.code, visit.annotator, pattern=int(pattern), key=key or None)
    return visit.stay(saved, "pattern")


@post(f"{ITEMS}/undo")
def undo(visit: OneVisit, key: Key = "") -> Response:
    """Takes the annotator's latest step on the item back."""
    return visit.stay(visit.store.undo(visit.code, visit.annotator, key=key or None), "pattern")


@post(f"{ITEMS}/finish")
def finish(visit: OneVisit, form: Annotated[PatternForm, Form()]) -> Response:
    """Stores that the item is finished, and a pattern that the form still holds before that."""
    given = form.judgement()
    try:
        if visit.holds_new(given):
            visit.store.save(visit.code, visit.annotator, **given, key=f"{form.key}-p" if form.key else None)
        saved = visit.store.finish(visit.code, visit.annotator, key=form.key or None)
    except AnnotationError as problem:
        return _show_problem(visit, problem, given)
    return visit.go_on(saved)


@post(f"{ITEMS}/none")
def none(visit: OneVisit, key: Key = "") -> Response:
    """Stores that the item is finished and that there is no pattern."""
    try:
        saved = visit.store.finish(visit.code, visit.annotator, none=True, key=key or None)
    except AnnotationError as problem:
        return _show_problem(visit, problem)
    return visit.go_on(saved)


@post(f"{ITEMS}/reopen")
def reopen(visit: OneVisit, key: Key = "") -> Response:
    """Takes a finished item up again."""
    return visit.stay(visit.store.finish(visit.code, visit.annotator, done=False, key=key or None))


@post(f"{ITEMS}/judge")
def judge(
    visit: OneVisit,
    verdict: Annotated[str, Form(max_length=20, description="related, distant, or none")] = "",
    key: Key = "",
) -> Response:
    """Calls a composition of the last layer related or distant."""
    saved = visit.store.judge(visit.code, visit.annotator, verdict=verdict, key=key or None)
    return visit.stay(saved) if verdict == "none" else visit.go_on(saved)


@post(f"{PLACE}/hand-in")
def hand_in(request: Request, annotator: OneAnnotator, store: OneStore, key: Key = "") -> Response:
    """Hands all work in, for good."""
    saved = store.hand_in(annotator, key=key or None)
    return done(request, {"handed_in": True, "again": saved.again}, to=f"{PLACE}/work")
