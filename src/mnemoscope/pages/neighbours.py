"""The memories most like one: by the direction of the value, and by the prefixes that trigger them."""

from typing import Any

from mnemoscope.memory import MemoryId
from mnemoscope.pages.columns import sharing, top_token
from mnemoscope.pages.edition import Edition

SHOWN = 10


def by_value(edition: Edition, wanted: MemoryId) -> list[dict[str, Any]]:
    """The stored neighbours: memory, cosine, and the token that its value ranks first."""
    rows = edition.atlas.tables.rows_where("neighbours", wanted.layer, column="memory", ids=[wanted.memory])
    return [
        _named(edition, MemoryId(row["other_layer"], row["other_memory"])) | {"cosine": row["cosine"]}
        for row in rows.sort("rank").to_dicts()
    ]


def by_triggers(edition: Edition, wanted: MemoryId, *, triggers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The memories that share the most positive triggers: memory, how many, of how many, and its top token.

    Equal prefixes count once.
    """
    prefixes: dict[int, tuple[int, int]] = {}
    for trigger in triggers:
        if trigger["sign"] == 1:
            prefixes.setdefault(trigger["prefix_group"], (trigger["sentence"], trigger["position"]))
    shared = sharing(edition, list(prefixes.values()))
    shared.pop((wanted.layer, wanted.memory), None)
    best = sorted(shared, key=lambda place: (-shared[place], place))[:SHOWN]
    return [_named(edition, MemoryId(*place)) | {"shared": shared[place], "of": len(prefixes)} for place in best]


def _named(edition: Edition, other: MemoryId) -> dict[str, Any]:
    top = top_token(edition, other.layer, memory=other.memory)
    return {"memory": str(other), "top": edition.atlas.vocabulary.token(top)}
