"""The data of an annotator's pages: the list of their items, and one item. Blind: neither memory nor control is
revealed.
"""

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
    progress = store.progress(annotator)
    finished, total = progress.keys_finished + progress.cases_finished, progress.keys + progress.cases
    return asdict(progress) | {"complete": progress.complete and total > 0, "finished": finished, "total": total}


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
    item = asdict(view)
    memory = item.get("memory")
    # A memory's code is its name, judged or not, because browsers store drafts under the code.
    return item | {"kind": "key" if "prefixes" in item else "case", "memory": memory, "code": memory or item["code"]}


def item_page(
    data: dict[str, Any], annotator: "Annotator", pattern: str = "", *, problem: str = "",
    draft: dict[str, Any] | None = None,
) -> Page:  # fmt: skip
    """The page of one item, editing the pattern named in the address, or a draft that could not be stored."""
    chosen = data["memory"] is not None
    if draft is not None:
        pattern = "new" if draft["pattern"] is None else str(draft["pattern"])

    def extra() -> dict[str, Any]:
        # Browsers store the drafts of each annotator under this key.
        person = hashlib.sha256(annotator.name.encode()).hexdigest()[:12]
        # `none` has another meaning in templates.
        values = {"bare": not chosen, "key": new_key(), "person": person, "nothing": data.get("none", False)}
        editing = _form(data["patterns"], pattern, draft) if data["kind"] == "key" else {}
        return {**values, "problem": problem, **editing}

    if chosen:
        return Page(MEMORY, f"Annotate {data['memory']}", data | {"name": annotator.name}, extra)
    return Page(ITEM, f"Item {data['number']}", data, extra)


def _form(patterns: list[dict[str, Any]], asked: str, draft: dict[str, Any] | None) -> dict[str, Any]:
    """The initial values of a key's form, and its pattern: None for a new one, by default the last."""
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
    """The next unfinished item after this one, else from the start; None if all are finished."""
    at = next((index for index, place in enumerate(places) if place.code == code), -1)
    turned = [*places[at + 1 :], *places[: at + 1]]
    return next((place.code for place in turned if not place.finished and place.code != code), None)
