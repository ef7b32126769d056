"""The data of an annotator's pages: the list of their work, and one item. Blind: neither memory nor control is told."""

import hashlib
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mnemoscope.show.pages.page import Page

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.store import Store
    from mnemoscope.annotate.campaigns.views import Annotator, CaseView, KeyView, Place

ITEM, MEMORY = "annotate_item.html", "annotate_memory.html"


def work_view(store: "Store", annotator: "Annotator") -> dict[str, Any]:
    """Everything that the annotator has to judge, and how far it is done."""
    places = store.places(annotator)
    return {
        "name": annotator.name,
        "progress": progress_view(store, annotator),
        "items": [
            {"number": number, "code": place.code, "kind": place.kind, "finished": place.finished}
            for number, place in enumerate(places, start=1)
        ],
        "next": after(places, None),
    }


def progress_view(store: "Store", annotator: "Annotator") -> dict[str, Any]:
    """How many keys and compositions are finished, and whether all is handed in."""
    found = store.progress(annotator)
    finished, total = found.keys_finished + found.cases_finished, found.keys + found.cases
    return asdict(found) | {"complete": found.complete and total > 0, "finished": finished, "total": total}


def item_view(store: "Store", annotator: "Annotator", view: "KeyView | CaseView") -> dict[str, Any]:
    """One item as this annotator sees it, with their own judgements and its place in their own order."""
    progress = progress_view(store, annotator)
    codes = [place.code for place in store.places(annotator)]
    number, previous, following = None, None, None
    others: list[dict[str, Any]] | None = None
    if view.code in codes:
        number = codes.index(view.code) + 1
        previous, following = ([None, *codes, None][place] for place in (number - 1, number + 1))
        if progress["handed_in"]:
            others = [asdict(one) for one in store.others(view.code, annotator)]
    near = {"number": number, "previous": previous, "next": following}
    return {**judged_item(view), **near, "progress": progress, "others": others}


def judged_item(view: "KeyView | CaseView") -> dict[str, Any]:
    """What is judged and what was said of it, as data."""
    found = asdict(view)
    memory = found.get("memory")
    # A memory goes by its name, whether or not somebody has judged it already: browsers keep drafts under the code.
    return found | {"kind": "key" if "prefixes" in found else "case", "memory": memory, "code": memory or found["code"]}


def item_page(
    data: dict[str, Any], annotator: "Annotator", pattern: str = "", *, problem: str = "",
    draft: dict[str, Any] | None = None,
) -> Page:  # fmt: skip
    """The page of one item, for editing the pattern that the address names, or a draft that could not be stored."""
    chosen = data["memory"] is not None
    if draft is not None:
        pattern = "new" if draft["pattern"] is None else str(draft["pattern"])

    def extra() -> dict[str, Any]:
        # A mark under which a browser keeps this annotator's drafts apart from another's.
        person = hashlib.sha256(annotator.name.encode()).hexdigest()[:12]
        # Templates know `none` by another meaning.
        found = {"bare": not chosen, "key": new_key(), "person": person, "nothing": data.get("none", False)}
        editing = _form(data["patterns"], pattern, draft) if data["kind"] == "key" else {}
        return {**found, "problem": problem, **editing}

    if chosen:
        return Page(MEMORY, f"Annotate {data['memory']}", data | {"name": annotator.name}, extra)
    return Page(ITEM, f"Item {data['number']}", data, extra)


def _form(patterns: list[dict[str, Any]], asked: str, draft: dict[str, Any] | None) -> dict[str, Any]:
    """What the form of a key starts with, and of which pattern: None for a new one, the last if none is asked for."""
    known = {one["pattern"]: one for one in patterns}
    slot = max(known) if known and asked != "new" else None
    if asked.isdigit() and int(asked) in known:
        slot = int(asked)
    own = {} if slot is None else {name: known[slot][name] for name in ("marks", "kind", "description")}
    return {"slot": slot, "draft": draft or {"marks": (), "kind": "", "description": "", **own}}


def new_key() -> str:
    """A key under which a form's judgement is stored once, however often it is sent."""
    return secrets.token_hex(12)


def after(places: "tuple[Place, ...]", code: str | None) -> str | None:
    """The next item that is not finished: after this one, else from the start; None where all are."""
    at = next((index for index, place in enumerate(places) if place.code == code), -1)
    turned = [*places[at + 1 :], *places[: at + 1]]
    return next((place.code for place in turned if not place.finished and place.code != code), None)
