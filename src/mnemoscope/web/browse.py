"""The pages of an atlas: the overview, one memory, the search and the tokens."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mnemoscope.memory import MemoryId
from mnemoscope.web.pages import Page, both
from mnemoscope.web.site import Site
from mnemoscope.web.views.one_memory import memory_view
from mnemoscope.web.views.overview import overview_view

NAV: tuple[tuple[str, str], ...] = ()

Name = Annotated[str, Path(max_length=100, description="A memory, such as L10.M222")]
Changes = Annotated[
    list[str], Query(alias="set", max_length=100, description="Interventions to carry along, such as L10.M222=0")
]


def router(site: Site) -> APIRouter:
    """The routes of browsing."""
    routes = APIRouter()

    @both(routes, site, "/", template="overview.html")
    def overview() -> Page:
        """What was mined, the headline figures, and the most striking memories."""
        return Page("", overview_view(site))

    @both(routes, site, "/{name}", template="memory.html")
    def memory(name: Name, carried: Changes = []) -> Page | Response:  # noqa: B006
        """One memory: triggers, value, activity, patterns, neighbours."""
        if not name.startswith("L"):
            raise HTTPException(404, f"There is no page {'/' + name!r}.")
        wanted = MemoryId.parse(name)
        return Page(str(wanted), memory_view(site, wanted, carried=carried))

    return routes
