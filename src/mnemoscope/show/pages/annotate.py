"""The data of the annotation pages: an annotator's items, one item, the campaign and its people, all results.

An annotator's pages are blind: neither memory nor control is revealed.
"""

import hashlib
import secrets
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

import polars as pl

from mnemoscope.foundation.words import Words, in_words
from mnemoscope.questions.question import EMPTY
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.page import Page, PageKind
from mnemoscope.show.pages.questions import Size, answers_of, draw_answer

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.results import Results
    from mnemoscope.annotate.campaigns.store import Store
    from mnemoscope.annotate.campaigns.views import Annotator, CaseView, KeyView, Place

ITEM, MEMORY = "annotate_item.html", "annotate_memory.html"
PAGES = (
    PageKind("annotate", "/annotate", label="Annotate", about="say what keys detect, as the paper's annotators did."),
)
NUMBERS = ("patterns_per_key", "key_class", "trigger_marked", "trigger_class", "composition")
"""Numbers that are not shares."""
TITLES = {
    "keys_with_pattern": "keys with at least one pattern",
    "patterns_per_key": "patterns per key",
    "covered": "{prefixes} under a pattern",
    "shallow": "{prefixes} under a shallow pattern",
    "semantic": "{prefixes} under a semantic pattern",
    "shallow_only": "shallow alone",
    "semantic_only": "semantic alone",
    "both": "both",
    "none": "no pattern",
    "controls_with_pattern": "controls in which somebody saw a pattern",
    "controls_covered": "their {prefixes} that were marked",
    "key_class": "what a key detects (shallow, semantic, both, nothing)",
    "trigger_marked": "whether a {prefix} falls under a pattern",
    "trigger_class": "the kind of pattern that a {prefix} falls under",
    "composition": "related or distant",
    "precision": "of the {prefixes} that automatic patterns explain, people mark",
    "recall": "of the {prefixes} that people mark, automatic patterns explain",
    "same_kind": "of those that both explain, both give the same kind",
    "same_class": "keys that both call the same",
    "related": "related",
    "distant": "distant",
    "split": "as many for the one as for the other",
}
"""Labels of the numbers of results; other names are shown as they are."""


def work_view(store: "Store", annotator: "Annotator") -> Data:
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


def progress_view(store: "Store", annotator: "Annotator") -> Data:
    progress = store.progress(annotator)
    finished, total = progress.keys_finished + progress.cases_finished, progress.keys + progress.cases
    return asdict(progress) | {"complete": progress.complete and total > 0, "finished": finished, "total": total}


def item_view(store: "Store", annotator: "Annotator", view: "KeyView | CaseView") -> Data:
    progress = progress_view(store, annotator)
    codes = [place.code for place in store.places(annotator)]
    number, previous, following = None, None, None
    others: list[Data] | None = None
    if view.code in codes:
        number = codes.index(view.code) + 1
        previous, following = ([None, *codes, None][place] for place in (number - 1, number + 1))
        if progress["handed_in"]:
            others = [asdict(one) for one in store.others(view.code, annotator)]
    near = {"number": number, "previous": previous, "next": following}
    return {**judged_item(view), **near, "progress": progress, "others": others}


def judged_item(view: "KeyView | CaseView") -> Data:
    item = asdict(view)
    memory = item.get("memory")
    # A memory's code is its name, judged or not, because browsers store drafts under the code.
    return item | {"kind": "key" if "prefixes" in item else "case", "memory": memory, "code": memory or item["code"]}


def item_page(
    data: Data,
    annotator: "Annotator",
    pattern: str = "",
    *,
    problem: str = "",
    draft: Data | None = None,
) -> Page:
    """The page of one item, editing the pattern named in the address, or a draft that could not be stored."""
    is_memory = data["memory"] is not None
    if draft is not None:
        pattern = "new" if draft["pattern"] is None else str(draft["pattern"])

    def extra() -> Data:
        # Browsers store the drafts of each annotator under this key.
        person = hashlib.sha256(annotator.name.encode()).hexdigest()[:12]
        # `none` has another meaning in templates.
        values = {"bare": not is_memory, "key": new_key(), "person": person, "nothing": data.get("none", False)}
        if data["kind"] == "key":
            # The form's initial values, and its pattern: None for a new one, by default the last.
            patterns = {one["pattern"]: one for one in data["patterns"]}
            slot = max(patterns) if patterns and pattern != "new" else None
            slot = {str(number): number for number in patterns}.get(pattern, slot)
            form = {"marks": (), "kind": "", "description": ""}
            if slot is not None:
                form = {name: patterns[slot][name] for name in form}
            values |= {"slot": slot, "draft": draft or form}
        return values | {"problem": problem}

    if is_memory:
        return Page(MEMORY, f"Annotate {data['memory']}", data | {"name": annotator.name}, extra)
    return Page(ITEM, f"Item {data['number']}", data, extra)


def new_key() -> str:
    return secrets.token_hex(12)


def after(places: "tuple[Place, ...]", code: str | None) -> str | None:
    """The next unfinished item after this one, else from the start; None if all are finished."""
    at = next((index for index, place in enumerate(places) if place.code == code), -1)
    turned = [*places[at + 1 :], *places[: at + 1]]
    return next((place.code for place in turned if not place.finished and place.code != code), None)


def campaign_view(store: "Store | None") -> Data:
    if store is None:
        return {"campaign": None, "people": []}
    campaign, people = store.campaign(), store.annotators()
    return {
        "campaign": campaign and asdict(campaign),
        "people": [asdict(one) | {"progress": progress_view(store, one)} for one in people],
    }


def results_view(results: "Results") -> Data:
    return {table.name: getattr(results, table.name).to_dicts() for table in fields(results)}


def draw_people(edition: Edition, figure: list[Data]) -> str:
    """Figure 2 from rules and people, drawn for wide and for narrow windows; empty without judgements."""
    if all(row["value"] is None for row in figure):
        return ""
    answer = answers_of(edition)["key_patterns"]
    rows = [row | {"name": f"people_{row['name']}"} for row in figure]
    people = pl.DataFrame(rows, infer_schema_length=None).select(EMPTY.columns).cast(EMPTY.schema)
    automatic = answer.table if answer.missing else answer.table.filter(~pl.col("name").str.starts_with("people_"))
    whole = pl.concat([automatic.select(EMPTY.columns).cast(EMPTY.schema), people])
    label = "Figure 2 from people's judgements beside automatic patterns; the numbers are in the table below"
    answers = {"key_patterns": replace(answer, table=whole, missing="")}
    sizes: dict[str, Size] = {"broad": "", "narrow": "narrow"}
    drawings = {one: draw_answer(answers, "key_patterns", name=one, label=label, size=sizes[one]) for one in sizes}
    return "".join(f'<div class="{one}">{drawing}</div>' for one, drawing in drawings.items())


def totals(rows: list[Data], words: Words) -> list[Data]:
    return [row | _name_view(row["name"], words) for row in rows if row["layer"] is None]


def by_layer(rows: list[Data], words: Words) -> Data:
    names = list(dict.fromkeys(row["name"] for row in rows if row["layer"] is not None))
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    cells = {(row["layer"], row["name"]): row for row in rows}
    lines = [{"layer": layer, "cells": [cells.get((layer, name)) for name in names]} for layer in layers]
    return {"names": [{"name": name} | _name_view(name, words) for name in names], "lines": lines}


def _name_view(name: str, words: Words) -> Data:
    return {"title": in_words(TITLES.get(name, name.replace("_", " ")), words), "share": name not in NUMBERS}
