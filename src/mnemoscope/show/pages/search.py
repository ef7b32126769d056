"""The pages of searching: memories that match, and for a token the values and keys that belong to it."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import polars as pl

from mnemoscope.foundation.options.mining_options import choose_layers
from mnemoscope.foundation.options.search_fields import SEARCH_FIELDS, USUAL_FIELDS, check_search_fields
from mnemoscope.search import Index
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.memory import memory_token
from mnemoscope.show.pages.page import Page, PageKind

PAGE = 50
LAST = 10_000 // PAGE

OpenIndex = Callable[[], Index]


def search_page(
    edition: Edition, index: OpenIndex, *, text: str, fields: Sequence[str], layers: str, page: int
) -> Page:
    """Memories that match; no hits and no total for an empty text."""
    among = read_layers(edition, layers)
    names = tuple(dict.fromkeys(piece for field in fields for piece in field.split(",") if piece)) or USUAL_FIELDS
    check_search_fields(names)
    data: Data = {
        "q": text,
        "in": list(names),
        "fields": list(SEARCH_FIELDS),
        "layers": layers,
        "page": page,
        "notes": [],
    }
    data |= {"total": None, "hits": [], "pages": 0, "totals": {}, "exact": True, "tokens": [], "lacking": []}
    if text.strip():
        data |= _hits(edition, index(), text, names, among, page)
    title = f"{text} · Search" if text else "Search"
    return Page("search.html", title, data, lambda: {"page_links": _links(data, fields), "chosen": data["in"]})


def _hits(
    edition: Edition, opened: Index, text: str, fields: tuple[str, ...], layers: Sequence[int] | None, page: int
) -> Data:
    result = opened.search(text, fields=fields, layers=layers, limit=PAGE, offset=PAGE * (page - 1))
    hits = [
        memory_token(edition, hit.memory)
        | {
            "field": hit.field,
            "sentence": hit.sentence,
            "firing": hit.firing,
            "memories": [str(memory) for memory in hit.memories],
            "parts": [{"text": piece, "marked": marked} for piece, marked in hit.parts],
            **{name: getattr(hit, name) for name in ("score", "count", "rank", "detail")},
        }
        for hit in result.hits
    ]
    like = opened.tokens_like(text.strip()[:200], limit=8)
    return {
        "total": result.total,
        "totals": result.totals,
        "exact": result.exact,
        "hits": hits,
        "tokens": [edition.atlas.vocabulary.token(token.id) for token in like],
        "notes": list(result.notes),
        "lacking": [field for field in opened.missing_fields if field in fields],
        "pages": -(-result.total // PAGE),
    }


def tokens_page(edition: Edition, index: OpenIndex, *, text: str) -> Page:
    if text:
        ids = [token.id for token in index().tokens_like(text, limit=2 * PAGE)]
    else:
        ids = _counts(edition).sort("count", descending=True, maintain_order=True).head(2 * PAGE)["token"].to_list()
    counts, vocabulary = _counts(edition).drop("token"), edition.atlas.vocabulary
    data = {"q": text, "tokens": [vocabulary.token(id) | counts.row(id, named=True) for id in ids]}
    return Page("tokens.html", f"{text} · Tokens" if text else "Tokens", data)


def token_page(edition: Edition, index: OpenIndex, *, token: int, layers: str, page: int) -> Page:
    among, vocabulary = read_layers(edition, layers), edition.atlas.vocabulary
    opened = index()
    totals = {kind: opened.count(token, kind=kind, layers=among) for kind in ("promotes", "demotes", "fires")}
    counts = _counts(edition).drop("token").row(token, named=True)
    page_of: Data = {"layers": among, "limit": PAGE, "offset": PAGE * (page - 1)}

    def rows(hits: Sequence[Any], *names: str) -> list[Data]:
        return [memory_token(edition, one.memory) | {name: getattr(one, name) for name in names} for one in hits]

    numbers = ("rank", "probability", "score")
    data: Data = {
        "token": vocabulary.token(token) | {"bytes": vocabulary.raw[token].hex(" "), **counts},
        "totals": totals,
        "promotes": rows(opened.promoting(token, **page_of), *numbers),
        "demotes": rows(opened.promoting(token, bottom=True, **page_of), *numbers),
        "fires": rows(opened.firing_on(token, **page_of), "rank", "triggers"),
        "pages": -(-max(totals.values()) // PAGE),
        "layers": layers,
        "page": page,
    }
    return Page("token.html", f"{data['token']['shown']} · Token", data, lambda: {"page_links": _links(data, [])})


def _counts(edition: Edition) -> pl.DataFrame:
    return edition.mined.get("tokens", lambda: edition.atlas.table("tokens").sort("token").drop("first_count"))


def read_layers(edition: Edition, text: str) -> Sequence[int] | None:
    """The layers in `0-3,7`; None for none."""
    named = "".join(text.split())
    return choose_layers(named, len(edition.atlas.manifest.model.sizes.memories)) if named else None


def _links(data: Data, fields: Sequence[str]) -> dict[str, str]:
    page = data["page"]
    pairs = [("q", data.get("q", "")), *(("in", field) for field in fields), ("layers", data["layers"])]

    def address(number: int) -> str:
        return "?" + urlencode([*((name, value) for name, value in pairs if value), ("page", number)])

    more = page < min(data["pages"], LAST)
    return {"before": address(page - 1) if page > 1 else "", "after": address(page + 1) if more else ""}


PAGES = (PageKind("search", "/search", label="Search"), PageKind("tokens", "/tokens", label="Tokens"))
