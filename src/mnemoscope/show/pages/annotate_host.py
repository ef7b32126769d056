"""The data of the host's pages: the campaign and its people, and the results of all judgements."""

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from mnemoscope.questions.question import EMPTY
from mnemoscope.show.pages.annotate_item import progress_view
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import PageKind
from mnemoscope.show.pages.questions import answers_of, draw_answer

if TYPE_CHECKING:
    from mnemoscope.annotate.campaigns.results import Results
    from mnemoscope.annotate.campaigns.store import Store

PAGES = (
    PageKind(
        "annotate", "/annotate", label="Annotate", about="say what keys detect, as the paper's annotators did."
    ),
)
NUMBERS = ("patterns_per_key", "key_class", "trigger_marked", "trigger_class", "composition")
"""Numbers that are not shares."""
TITLES = {
    "keys_with_pattern": "keys with at least one pattern",
    "patterns_per_key": "patterns per key",
    "covered": "prefixes under a pattern",
    "shallow": "prefixes under a shallow pattern",
    "semantic": "prefixes under a semantic pattern",
    "shallow_only": "shallow alone",
    "semantic_only": "semantic alone",
    "both": "both",
    "none": "no pattern",
    "controls_with_pattern": "controls in which somebody saw a pattern",
    "controls_covered": "their prefixes that were marked",
    "key_class": "what a key detects (shallow, semantic, both, nothing)",
    "trigger_marked": "whether a prefix falls under a pattern",
    "trigger_class": "the kind of pattern that a prefix falls under",
    "composition": "related or distant",
    "precision": "of the prefixes that automatic patterns explain, people mark",
    "recall": "of the prefixes that people mark, automatic patterns explain",
    "same_kind": "of those that both explain, both give the same kind",
    "same_class": "keys that both call the same",
    "related": "related",
    "distant": "distant",
    "split": "as many say the one as the other",
}
"""Labels of the numbers of results; other names are shown as they are."""


def campaign_view(store: "Store | None") -> dict[str, Any]:
    campaign = None if store is None else store.campaign()
    people = [] if store is None else list(store.annotators())
    return {
        "campaign": None if campaign is None else asdict(campaign),
        "people": [
            {"name": one.name, "role": one.role, "progress": progress_view(store, one) if store else {}}
            for one in people
        ],
    }


def results_view(found: "Results") -> dict[str, Any]:
    return {table.name: getattr(found, table.name).to_dicts() for table in fields(found)}


def draw_people(edition: Edition, figure: list[dict[str, Any]]) -> str:
    """Figure 2 with automatic patterns and people's side by side, as an `svg` element; empty without judgements."""
    if all(row["value"] is None for row in figure):
        return ""
    answer = answers_of(edition)["key_patterns"]
    rows = [row | {"name": f"people_{row['name']}"} for row in figure]
    people = pl.DataFrame(rows, infer_schema_length=None).select(EMPTY.columns).cast(EMPTY.schema)
    own = answer.table if answer.missing else answer.table.filter(~pl.col("name").str.starts_with("people_"))
    whole = pl.concat([own.select(EMPTY.columns).cast(EMPTY.schema), people])
    label = "Figure 2 from people's judgements beside automatic patterns; the numbers are in the table below"
    answers = {"key_patterns": replace(answer, table=whole, missing="")}
    return draw_answer(answers, "key_patterns", name="people", label=label)


def totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | _name_view(row["name"]) for row in rows if row["layer"] is None]


def by_layer(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(row["name"] for row in rows if row["layer"] is not None))
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    cells = {(row["layer"], row["name"]): row for row in rows}
    lines = [{"layer": layer, "cells": [cells.get((layer, name)) for name in names]} for layer in layers]
    return {"names": [{"name": name} | _name_view(name) for name in names], "lines": lines}


def _name_view(name: str) -> dict[str, Any]:
    return {"title": TITLES.get(name, name.replace("_", " ")), "share": name not in NUMBERS}
