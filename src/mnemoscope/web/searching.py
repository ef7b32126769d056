"""The pages of searching: text in triggers, values, patterns and annotations; and one token, who says it, who fires."""

import re
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from mnemoscope.errors import OptionError
from mnemoscope.memory import MemoryId
from mnemoscope.pages.search import PAGE, search_view, token_view, tokens_view
from mnemoscope.web.pages import Page, both
from mnemoscope.web.search_index import Opening
from mnemoscope.web.site import Site

NAV: tuple[tuple[str, str], ...] = (("Search", "/search"), ("Tokens", "/tokens"))

Asked = Annotated[str, Query(max_length=1_000, description='Words, "a phrase", a beginning (par*), or a memory')]
Fields = Annotated[
    list[str],
    Query(alias="in", max_length=8, description="Where: triggers, values, patterns, annotations, bottom; all if none"),
]
Layers = Annotated[str, Query(max_length=400, description="Only these layers, such as 0-3,7")]
Number = Annotated[int, Query(ge=1, le=10_000 // PAGE, description="Which page of hits, from 1")]
_MEMORY = re.compile(r"\s*[lL]\d+\.[mM]\d+\s*")


def router(site: Site) -> APIRouter:
    """The routes of searching; the index is opened in the background as soon as they are made."""
    routes = APIRouter()
    opening = Opening(site)
    site.tasks.append(opening.begin)

    @both(routes, site, "/search", template="search.html", kept=False)
    def search(q: Asked = "", fields: Fields = [], layers: Layers = "", page: Number = 1) -> Page | Response:  # noqa: B006
        """Memories by what their triggers, values, patterns and annotations say; a memory's name opens it."""
        if _MEMORY.fullmatch(q):
            named = MemoryId.parse(q.strip().upper())
            return RedirectResponse(f"/{site.atlas[named].id}", 303)
        data = search_view(
            site.edition(), opening.index, text=q, fields=tuple(fields), layers=chosen_layers(site, layers), page=page
        )
        data |= {"layers": layers, "page": page}
        return Page(
            f"{q} · Search" if q else "Search", data, lambda: {"page_links": _pages(data, fields), "chosen": data["in"]}
        )

    @both(routes, site, "/tokens", template="tokens.html", kept=False)
    def tokens(q: Annotated[str, Query(max_length=200, description="Part of the token's text")] = "") -> Page:
        """Tokens that read like a text; without one, the most frequent."""
        return Page(f"{q} · Tokens" if q else "Tokens", tokens_view(site.edition(), opening.index, text=q))

    @both(routes, site, "/tokens/{token}", template="token.html", kept=False)
    def token(
        token: Annotated[int, Path(ge=0, le=(1 << 31) - 1, description="The token's number")],
        layers: Layers = "",
        page: Number = 1,
    ) -> Page:
        """One token: the values that promote it, those that speak against it, and the keys that fire on it."""
        last = len(site.edition().atlas.vocabulary.texts) - 1
        if token > last:
            raise HTTPException(404, f"Token {token} is not in the vocabulary, which has tokens 0-{last}.")
        data = token_view(site.edition(), opening.index, token=token, layers=chosen_layers(site, layers), page=page)
        data |= {"layers": layers, "page": page}
        return Page(f"{data['token']['shown']} · Token", data, lambda: {"page_links": _pages(data, [])})

    return routes


def chosen_layers(site: Site, text: str) -> list[int] | None:
    """The layers that `0-3,7` names; None for none named. Raises OptionError, also for a layer that was not mined."""
    if not text.strip():
        return None
    found: set[int] = set()
    for piece in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", piece)
        if ends is None:
            raise OptionError(f"layers {text!r} cannot be read; write them as 0-3,7")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or last > site.atlas.layers[-1]:
            raise OptionError(f"layers {text!r} are not all there; the atlas has {site.atlas.range_text()}")
        found |= set(range(first, last + 1))
    if missing := sorted(found - set(site.atlas.layers)):
        raise OptionError(f"layer {missing[0]} was not mined; the atlas has {site.atlas.range_text()}")
    return sorted(found)


def _pages(data: dict[str, object], fields: list[str]) -> dict[str, str]:
    """The addresses of the page before and after."""
    page, asked = data["page"], [("q", str(data.get("q", "")))] + [("in", field) for field in fields]
    assert isinstance(page, int)
    rest = [(name, value) for name, value in [*asked, ("layers", str(data["layers"]))] if value]

    def address(number: int) -> str:
        return "?" + urlencode([*rest, ("page", str(number))])

    more = isinstance(data["pages"], int) and page < min(data["pages"], 10_000 // PAGE)
    return {"before": address(page - 1) if page > 1 else "", "after": address(page + 1) if more else ""}
