"""The annotator's pages: the list of the work, one item at a time, and every judgement as a post.

Posts answer a program with JSON and a browser without script with the way to the next page. A judgement is sent with a
key of its own and stored once, however often it is sent.
"""

import re
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Form, Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnemoscope.errors import AnnotationError
from mnemoscope.memory import MemoryId
from mnemoscope.pages import annotate_item as judging
from mnemoscope.pages.page import Page
from mnemoscope.web.annotator_session import PLACE, AnnotatorSession, done, new_key
from mnemoscope.web.page_routes import REFUSALS, both
from mnemoscope.web.refusals import status_of
from mnemoscope.web.rendering import wants_json

if TYPE_CHECKING:
    from mnemoscope.campaigns.store import Store
    from mnemoscope.campaigns.views import CaseView, KeyView

Code = Annotated[str, Path(max_length=40, description="An item of the campaign, as the list of the work names it")]
Shown = Annotated[str, Query(pattern=r"^(\d{1,2}|new)?$", description="The pattern to edit: its number, or `new`")]
Pattern = Annotated[str, Form(pattern=r"^\d{0,2}$", description="The pattern's number; empty for a new one")]
Key = Annotated[str, Form(max_length=100, description="Another for every judgement; the same to send one again")]
Name = Annotated[str, Path(max_length=100, description="A memory, such as L10.M222")]
ITEM = "annotate_item.html"
MEMORY = "annotate_memory.html"
_MEMORY = re.compile(r"L\d{1,9}\.M\d{1,9}", re.ASCII)
"""A memory that is judged outside the campaign goes by its name."""


class Given(BaseModel):
    """The form of a pattern; the store says what of it cannot be."""

    kind: str = Field("", max_length=20, description="shallow, semantic or both")
    description: str = Field("", max_length=5_000, description="What the prefixes share")
    marks: list[int] = Field([], max_length=100, description="Numbers of the prefixes that share the pattern")
    pattern: str = Field("", pattern=r"^\d{0,2}$", description="The pattern's number; empty for a new one")
    key: str = Field("", max_length=100, description="Another for every judgement; the same to send one again")

    def judgement(self) -> dict[str, Any]:
        """What the store wants to know."""
        number = int(self.pattern) if self.pattern else None
        return {"kind": self.kind, "description": self.description, "marks": self.marks, "pattern": number}


def router(session: AnnotatorSession) -> APIRouter:
    """The routes of an annotator."""
    routes = APIRouter()
    site = session.site

    @both(routes, site, f"{PLACE}/work", name="annotate_items_work", kept=False)
    def work(request: Request, annotator: Annotated[Any, Depends(session.annotator)]) -> Page:
        """What the annotator has to judge, and how far it is."""
        data = judging.work_view(session.site.judgements.store(), annotator)
        return Page("annotate_work.html", "Your work", data, lambda: {"bare": True, "key": new_key()})

    @both(routes, site, PLACE + "/items/{code}", name="annotate_items_item", kept=False)
    def item(
        request: Request, code: Code, annotator: Annotated[Any, Depends(session.annotator)], pattern: Shown = ""
    ) -> Page | Response:
        """One item: prefixes to mark, or a composition to call related or distant."""
        if _MEMORY.fullmatch(code):
            return RedirectResponse(f"/{code}{PLACE}", 303)
        store, view = _having(session, annotator, code)
        data = judging.item_view(store, annotator, view)
        if data["memory"] is not None:
            return RedirectResponse(f"/{data['memory']}{PLACE}", 303)
        return Page(ITEM, _title(data), data, lambda: _more(data, annotator, pattern))

    @both(routes, site, "/{name}" + PLACE, name="annotate_items_memory", kept=False)
    def memory(
        request: Request, name: Name, annotator: Annotated[Any, Depends(session.known)], pattern: Shown = ""
    ) -> Page:
        """A memory that the reader wants to judge, outside the campaign."""
        wanted = site.atlas[MemoryId.parse(name)].id
        if annotator is None:
            data: dict[str, Any] = {"memory": str(wanted), "code": None, "name": None}
            return Page(MEMORY, f"Annotate {wanted}", data)
        store = session.site.judgements.store()
        data = judging.item_view(store, annotator, store.view_memory(wanted, annotator)) | {"name": annotator.name}
        title = f"Annotate {wanted}"
        return Page(MEMORY, title, data, lambda: _more(data, annotator, pattern) | {"bare": False})

    _posts(routes, session)
    return routes


def _posts(routes: APIRouter, session: AnnotatorSession) -> None:
    guarded = [Depends(session.guarded)]
    post: dict[str, Any] = {"dependencies": guarded, "responses": REFUSALS, "response_class": Response}
    known = Depends(session.annotator)

    @routes.post(PLACE + "/items/{code}/save", **post)
    def save(
        request: Request, code: Code, annotator: Annotated[Any, known], form: Annotated[Given, Form()]
    ) -> Response:
        """Stores one pattern of the annotator in one item."""
        store, code = _item_to_judge(session, request, annotator, code)
        given = form.judgement()
        try:
            saved = store.save(code, annotator, **given, key=form.key or None)
        except AnnotationError as problem:
            return _again(session, request, annotator, code, problem, draft=given)
        data = {"pattern": saved.pattern, "made_at": saved.made_at, "again": saved.again}
        return done(request, data, to=_address(store, annotator, code, saved.pattern))

    @routes.post(PLACE + "/items/{code}/retract", **post)
    def retract(
        request: Request, code: Code, annotator: Annotated[Any, known], pattern: Pattern = "", key: Key = ""
    ) -> Response:
        """Takes one of the annotator's patterns back."""
        store, code = _item_to_judge(session, request, annotator, code)
        if not pattern:
            raise HTTPException(400, "Say which pattern is to be taken back.")
        saved = store.retract(code, annotator, pattern=int(pattern), key=key or None)
        return done(request, {"pattern": saved.pattern, "again": saved.again}, to=_address(store, annotator, code))

    @routes.post(PLACE + "/items/{code}/undo", **post)
    def undo(request: Request, code: Code, annotator: Annotated[Any, known], key: Key = "") -> Response:
        """Takes the annotator's latest step on the item back."""
        store, code = _item_to_judge(session, request, annotator, code)
        saved = store.undo(code, annotator, key=key or None)
        return done(request, {"pattern": saved.pattern, "again": saved.again}, to=_address(store, annotator, code))

    @routes.post(PLACE + "/items/{code}/finish", **post)
    def finish(
        request: Request, code: Code, annotator: Annotated[Any, known], form: Annotated[Given, Form()]
    ) -> Response:
        """Stores that the item is finished, and a pattern that the form still holds before that."""
        store, code = _item_to_judge(session, request, annotator, code)
        given = form.judgement()
        try:
            if _new(store, annotator, code, given):
                store.save(code, annotator, **given, key=f"{form.key}-p" if form.key else None)
            saved = store.finish(code, annotator, key=form.key or None)
        except AnnotationError as problem:
            return _again(session, request, annotator, code, problem, draft=given)
        return _onwards(request, store, annotator, code, again=saved.again)

    @routes.post(PLACE + "/items/{code}/none", **post)
    def none(request: Request, code: Code, annotator: Annotated[Any, known], key: Key = "") -> Response:
        """Stores that the item is finished and that there is no pattern."""
        store, code = _item_to_judge(session, request, annotator, code)
        try:
            saved = store.finish(code, annotator, none=True, key=key or None)
        except AnnotationError as problem:
            return _again(session, request, annotator, code, problem)
        return _onwards(request, store, annotator, code, again=saved.again)

    @routes.post(PLACE + "/items/{code}/reopen", **post)
    def reopen(request: Request, code: Code, annotator: Annotated[Any, known], key: Key = "") -> Response:
        """Takes a finished item up again."""
        store, code = _item_to_judge(session, request, annotator, code)
        saved = store.finish(code, annotator, done=False, key=key or None)
        return done(request, {"again": saved.again}, to=_address(store, annotator, code))

    @routes.post(PLACE + "/items/{code}/judge", **post)
    def judge(
        request: Request, code: Code, annotator: Annotated[Any, known],
        verdict: Annotated[str, Form(max_length=20, description="related, distant, or none")] = "", key: Key = "",
    ) -> Response:  # fmt: skip
        """Calls a composition of the last layer related or distant."""
        store, code = _item_to_judge(session, request, annotator, code)
        saved = store.judge(code, annotator, verdict=verdict, key=key or None)
        if verdict == "none":
            return done(request, {"again": saved.again}, to=_address(store, annotator, code))
        return _onwards(request, store, annotator, code, again=saved.again)

    @routes.post(PLACE + "/hand-in", **post)
    def hand_in(request: Request, annotator: Annotated[Any, known], key: Key = "") -> Response:
        """Hands all work in, for good."""
        saved = session.site.judgements.store().hand_in(annotator, key=key or None)
        return done(request, {"handed_in": True, "again": saved.again}, to=f"{PLACE}/work")


def _having(session: AnnotatorSession, annotator: Any, code: str) -> "tuple[Store, KeyView | CaseView]":
    """The store and what the annotator sees of the item; raises 404."""
    store = session.site.judgements.store()
    try:
        return store, store.view(code, annotator)
    except AnnotationError as problem:
        raise HTTPException(404 if problem.__cause__ is None else status_of(problem), f"{problem}.") from problem


def _item_to_judge(session: AnnotatorSession, request: Request, annotator: Any, code: str) -> "tuple[Store, str]":
    """The store and the code of an item that is being judged; a memory's name makes one of it. Raises 404."""
    if _MEMORY.fullmatch(code) and session.has_full_access(request):
        code = session.site.judgements.store().choose(MemoryId.parse(code))
    return _having(session, annotator, code)[0], code


def _new(store: "Store", annotator: Any, code: str, given: dict[str, Any]) -> bool:
    """Whether the form holds something that is not stored yet."""
    if not given["marks"] and not given["description"].strip():
        return False
    patterns = judging.seen(store.view(code, annotator)).get("patterns", ())
    stored = next((one for one in patterns if one["pattern"] == given["pattern"]), None)
    if stored is None:
        return True
    form = (given["kind"], " ".join(given["description"].split()), sorted(set(given["marks"])))
    return form != (stored["kind"], stored["description"], sorted(stored["marks"]))


def _address(store: "Store", annotator: Any, code: str, pattern: int | None = None) -> str:
    """The item's page."""
    memory = judging.seen(store.view(code, annotator))["memory"]
    place = f"{PLACE}/items/{code}" if memory is None else f"/{memory}{PLACE}"
    return place if pattern is None else f"{place}?pattern={pattern}"


def _onwards(request: Request, store: "Store", annotator: Any, code: str, *, again: bool) -> Response:
    """To the next item that is not finished, or back to the list."""
    following = judging.after(store.places(annotator), code)
    to = f"{PLACE}/work" if following is None else f"{PLACE}/items/{following}"
    return done(request, {"finished": True, "again": again, "next": to}, to=to)


def _again(
    session: AnnotatorSession, request: Request, annotator: Any, code: str, problem: AnnotationError, *,
    draft: dict[str, Any] | None = None,
) -> Response:  # fmt: skip
    """The item's page with what was wrong, and with what was typed; a program gets the sentence alone."""
    if wants_json(request) or status_of(problem) != 409:
        raise problem
    store = session.site.judgements.store()
    data = judging.item_view(store, annotator, store.view(code, annotator))
    asked = "" if draft is None else "new" if draft["pattern"] is None else str(draft["pattern"])
    values = {"title": _title(data), **data, **_more(data, annotator, asked), "problem": str(problem)}
    if draft is not None and "draft" in values:
        values["draft"] = draft
    if data["memory"] is None:
        return session.render(request, ITEM, values, status=409)
    whole = values | {"bare": False, "name": annotator.name}
    return session.render(request, MEMORY, whole, status=409)


def _title(data: dict[str, Any]) -> str:
    return f"Item {data['number']}" if data["number"] else f"Annotate {data['memory']}"


def _more(data: dict[str, Any], annotator: Any, asked: str) -> dict[str, Any]:
    found = {"bare": True, "key": new_key(), "person": judging.person(annotator), "problem": ""}
    # Templates know `none` by another meaning.
    found["nothing"] = data.get("none", False)
    return found | (judging.editing(data, asked) if data["kind"] == "key" else {})
