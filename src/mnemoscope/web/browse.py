"""The pages of an atlas: the overview, and one memory."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mnemoscope.errors import MemoryIdError
from mnemoscope.memory import MemoryId
from mnemoscope.pages.memory import memory_groups, memory_view
from mnemoscope.pages.overview import overview_view, overview_words
from mnemoscope.pages.trace_address import CHANGES, PROMPT, Asked, asked
from mnemoscope.web.pages import Page, both
from mnemoscope.web.site import Site

NAV: tuple[tuple[str, str], ...] = ()

Name = Annotated[str, Path(max_length=100, description="A memory, such as L10.M222")]
Pattern = Annotated[int | None, Query(ge=0, le=32_767, description="The pattern whose triggers are marked")]
Changes = Annotated[
    list[str], Query(alias="set", max_length=CHANGES, description="Interventions to carry along, such as L10.M222=0")
]
Prompt = Annotated[str | None, Query(max_length=PROMPT, description="A traced prompt to carry along")]
At = Annotated[str, Query(max_length=10, description="Where those interventions hold, to carry along")]


def router(site: Site) -> APIRouter:
    """The routes of the overview and of memories; the latter answer any single name, so they come last."""
    routes = APIRouter()

    @both(routes, site, "/", template="overview.html")
    def overview() -> Page:
        """What was mined, the answers in words, and the most striking memories."""
        data = site.tables.get("overview", lambda: overview_view(site.edition()))
        return Page("", data, lambda: overview_words(site.edition(), data))

    def said(name: str, **_: object) -> object:
        """What people say of a memory, who may go on doing so while the rest of its page stays."""
        try:
            return site.judgements.published_for(site.atlas[MemoryId.parse(name)].id) or None
        except MemoryIdError:
            return None

    @both(routes, site, "/{name}", template="memory.html", mark=said)
    def memory(
        name: Name,
        pattern: Pattern = None,
        carried: Changes = [],  # noqa: B006
        prompt: Prompt = None,
        at: At = "all",
    ) -> Page | Response:
        """One memory: triggers, value, activity, patterns, neighbours."""
        if not name.startswith("L"):
            raise HTTPException(404, f"There is no page {f'/{name}'!r}.")
        wanted = MemoryId.parse(name)
        people = site.judgements.published_for(wanted)
        data = memory_view(site.edition(), wanted, pattern=pattern) | {"people": people, "set": carried}
        return Page(str(wanted), data, lambda: memory_groups(data) | _links(site, wanted, asked(prompt, carried, at)))

    return routes


def _links(site: Site, wanted: MemoryId, so_far: Asked) -> dict[str, str]:
    """What the page's links carry along: prompt and interventions so far, and with one more, for a trace."""
    carry, off = so_far.query(), so_far.changed(f"{wanted}=0") if site.model else ""
    return {"carry": f"&{carry}" if carry else "", "add": off}
