"""The data of the host's pages: the campaign and its people, and what all judgements add up to."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mnemoscope.pages.annotate_item import progress_view

if TYPE_CHECKING:
    import polars as pl

    from mnemoscope.campaigns.results import Results
    from mnemoscope.campaigns.store import Store

NUMBERS = ("patterns_per_key", "key_class", "trigger_marked", "trigger_class", "composition")
"""The names whose values are no shares."""
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
"""What the numbers of results are called on the page; a name that is not here stands for itself."""


def campaign_view(store: "Store | None") -> dict[str, Any]:
    """The campaign, or None, and everybody who was invited with their progress."""
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
    """Every table of the results, as lists of rows."""
    return {
        "figure": _rows(found.figure),
        "controls": _rows(found.controls),
        "agreement": _rows(found.agreement),
        "automatic": _rows(found.automatic),
        "compositions": _rows(found.compositions),
        "authors": found.authors.to_dicts(),
    }


def _rows(table: "pl.DataFrame") -> list[dict[str, Any]]:
    return table.to_dicts()


def totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the whole campaign, with a title each and whether they are shares."""
    return [row | _titled(row["name"]) for row in rows if row["layer"] is None]


def by_layer(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of layers as a table: names across, layers down."""
    names = list(dict.fromkeys(row["name"] for row in rows if row["layer"] is not None))
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    found = {(row["layer"], row["name"]): row for row in rows}
    lines = [{"layer": layer, "cells": [found.get((layer, name)) for name in names]} for layer in layers]
    return {"names": [{"name": name} | _titled(name) for name in names], "lines": lines}


def _titled(name: str) -> dict[str, Any]:
    return {"title": TITLES.get(name, name.replace("_", " ")), "share": name not in NUMBERS}
