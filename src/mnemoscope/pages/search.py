"""The data of the search pages: hits as memories with what matched, and a token as the values and keys that know it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from mnemoscope.errors import OptionError
from mnemoscope.pages.columns import top_token
from mnemoscope.pages.edition import Edition

if TYPE_CHECKING:
    from mnemoscope.memory import MemoryId
    from mnemoscope.search import Index

PAGE = 50
LIKE = 8
"""Tokens that read like what was asked, beside the hits."""
FIELDS = ("triggers", "values", "patterns", "annotations", "bottom")
USUAL = FIELDS[:-1]

Opened = Callable[[], "Index"]


def search_view(
    edition: Edition, index: Opened, *, text: str, fields: Sequence[str], layers: Sequence[int] | None, page: int
) -> dict[str, Any]:
    """One page of hits for the text; none, and no total, for an empty text. Raises what Index.search raises."""
    wanted = tuple(dict.fromkeys(piece for field in fields for piece in field.split(",") if piece)) or USUAL
    if unknown := [field for field in wanted if field not in FIELDS]:
        raise OptionError(f"field {unknown[0]!r} cannot be searched; choose of {', '.join(FIELDS)}")
    data: dict[str, Any] = {
        "q": text,
        "in": list(wanted),
        "fields": list(FIELDS),
        "total": None,
        "hits": [],
        "pages": 0,
    }
    if not text.strip():
        return data | {"totals": {}, "exact": True, "tokens": [], "lacking": []}
    opened = index()
    found = opened.search(text, fields=wanted, layers=layers, limit=PAGE, offset=PAGE * (page - 1))
    hits = [
        _memory(edition, hit.memory)
        | {
            "field": hit.field,
            "parts": [{"text": piece, "marked": marked} for piece, marked in hit.parts],
            "score": hit.score,
            "count": hit.count,
            "rank": hit.rank,
            "detail": hit.detail,
        }
        for hit in found.hits
    ]
    like = [edition.atlas.vocabulary.token(token.id) for token in opened.tokens_like(text.strip()[:200], limit=LIKE)]
    lacking = [field for field in opened.missing_fields if field in wanted]
    return data | {
        "total": found.total,
        "totals": found.totals,
        "exact": found.exact,
        "hits": hits,
        "tokens": like,
        "lacking": lacking,
        "pages": -(-max(found.totals.values(), default=0) // PAGE) if len(wanted) == 1 else -(-found.total // PAGE),
    }


def tokens_view(edition: Edition, index: Opened, *, text: str) -> dict[str, Any]:
    """The tokens that read like the text, the most frequent first; without a text the most frequent of all."""
    if text:
        ids = [token.id for token in index().tokens_like(text, limit=2 * PAGE)]
    else:
        ids = _counts(edition).sort("count", descending=True, maintain_order=True).head(2 * PAGE)["token"].to_list()
    counts = _counts(edition)
    return {
        "q": text,
        "tokens": [
            edition.atlas.vocabulary.token(id) | {"count": counts["count"][id], "next_count": counts["next_count"][id]}
            for id in ids
        ],
    }


def token_view(
    edition: Edition, index: Opened, *, token: int, layers: Sequence[int] | None, page: int
) -> dict[str, Any]:
    """One token: how often it occurs, the values with it at their top and bottom, and the keys that fire on it."""
    vocabulary = edition.atlas.vocabulary
    opened, offset = index(), PAGE * (page - 1)
    kinds = ("promotes", "demotes", "fires")
    totals = {kind: opened.count(token, kind=kind, layers=layers) for kind in kinds}
    counts = _counts(edition).row(token, named=True)
    said = [
        [
            _memory(edition, one.memory) | {"rank": one.rank, "probability": one.probability, "score": one.score}
            for one in opened.promoting(token, bottom=bottom, layers=layers, limit=PAGE, offset=offset)
        ]
        for bottom in (False, True)
    ]
    fires = [
        _memory(edition, one.memory) | {"rank": one.rank, "triggers": one.triggers}
        for one in opened.firing_on(token, layers=layers, limit=PAGE, offset=offset)
    ]
    return {
        "token": vocabulary.token(token)
        | {"bytes": vocabulary.raw[token].hex(" "), "count": counts["count"], "next_count": counts["next_count"]},
        "totals": totals,
        "promotes": said[0],
        "demotes": said[1],
        "fires": fires,
        "pages": -(-max(totals.values()) // PAGE),
    }


def _memory(edition: Edition, memory: "MemoryId") -> dict[str, Any]:
    top = top_token(edition, memory.layer, memory=memory.memory)
    return {"memory": str(memory), "top": edition.atlas.vocabulary.token(top)}


def _counts(edition: Edition) -> pl.DataFrame:
    return edition.tables.get("tokens", lambda: edition.atlas.table("tokens").sort("token"))
