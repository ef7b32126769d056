"""The memories most like one: by the direction of the value, and by the prefixes that trigger them."""

from typing import Any

from mnemoscope.memory import MemoryId
from mnemoscope.web.site import Site
from mnemoscope.web.views.columns import sharing, top_token, words

SHOWN = 10


def by_value(site: Site, wanted: MemoryId) -> list[dict[str, Any]]:
    """The stored neighbours: memory, cosine, and the token that its value ranks first."""
    rows = site.atlas.tables.having("neighbours", wanted.layer, column="memory", ids=[wanted.memory]).sort("rank")
    return [
        _named(site, MemoryId(row["other_layer"], row["other_memory"])) | {"cosine": row["cosine"]}
        for row in rows.to_dicts()
    ]


def by_triggers(site: Site, wanted: MemoryId, *, triggers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The memories that share the most positive triggers: memory, how many, of how many, and its top token.

    Equal prefixes count once.
    """
    prefixes: dict[int, tuple[int, int]] = {}
    for trigger in triggers:
        if trigger["sign"] == 1:
            prefixes.setdefault(trigger["prefix_group"], (trigger["sentence"], trigger["position"]))
    shared = sharing(site, list(prefixes.values()))
    shared.pop((wanted.layer, wanted.memory), None)
    best = sorted(shared, key=lambda place: (-shared[place], place))[:SHOWN]
    return [_named(site, MemoryId(*place)) | {"shared": shared[place], "of": len(prefixes)} for place in best]


def _named(site: Site, other: MemoryId) -> dict[str, Any]:
    top = top_token(site, other.layer, memory=other.memory)
    return {"memory": str(other), "top": words(site).token(top)}
