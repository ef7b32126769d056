"""The data of an annotator's pages: the list of their work, and one item. Blind: neither memory nor control is told."""

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnemoscope.campaigns.store import Store
    from mnemoscope.campaigns.views import Annotator, CaseView, KeyView, OthersJudgement, Place


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
    places, code = store.places(annotator), view.code
    progress = progress_view(store, annotator)
    at = next((index for index, place in enumerate(places) if place.code == code), None)
    near: dict[str, Any] = {"number": None, "previous": None, "next": None}
    if at is not None:
        near = {
            "number": at + 1,
            "previous": places[at - 1].code if at else None,
            "next": places[at + 1].code if at + 1 < len(places) else None,
        }
    told = at is not None and progress["handed_in"]
    others = [_said(said) for said in store.others(code, annotator)] if told else None
    return {**seen(view), **near, "progress": progress, "others": others}


def seen(view: "KeyView | CaseView") -> dict[str, Any]:
    """What is judged and what was said of it, as data."""
    found = asdict(view)
    memory = found.get("memory")
    # A memory goes by its name, whether or not somebody has judged it already: browsers keep drafts under the code.
    return found | {"kind": "key" if "prefixes" in found else "case", "memory": memory, "code": memory or found["code"]}


def _said(said: "OthersJudgement") -> dict[str, Any]:
    return asdict(said)


def after(places: "tuple[Place, ...]", code: str | None) -> str | None:
    """The next item that is not finished: after this one, else from the start; None where all are."""
    at = next((index for index, place in enumerate(places) if place.code == code), -1)
    turned = [*places[at + 1 :], *places[: at + 1]]
    return next((place.code for place in turned if not place.finished and place.code != code), None)


def slot_of(patterns: list[dict[str, Any]], asked: str) -> int | None:
    """The number of the pattern that is being edited, None for a new one; the last where the address names none."""
    numbers = [one["pattern"] for one in patterns]
    if asked.isdigit() and int(asked) in numbers:
        return int(asked)
    return numbers[-1] if numbers and asked != "new" else None


def editing(data: dict[str, Any], asked: str) -> dict[str, Any]:
    """What the form of a key starts with."""
    slot = slot_of(data["patterns"], asked)
    found = next((one for one in data["patterns"] if one["pattern"] == slot), None)
    draft = {"marks": found["marks"], "kind": found["kind"], "description": found["description"]} if found else {}
    return {"slot": slot, "draft": {"marks": (), "kind": "", "description": ""} | draft}


def person(annotator: "Annotator") -> str:
    """A mark under which a browser keeps this annotator's drafts apart from another's."""
    return hashlib.sha256(annotator.name.encode()).hexdigest()[:12]
