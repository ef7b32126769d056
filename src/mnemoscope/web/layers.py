"""The pages of layers: all memories of one as a table and as a picture, sorted and filtered by the address."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from markupsafe import Markup
from pydantic import Field
from starlette.exceptions import HTTPException

from mnemoscope.pages.drawings import layers_frame
from mnemoscope.pages.layer import DOWN_FIRST, Choice, Sort, chosen, layer_rows, layer_view, layers_view, titles
from mnemoscope.web.pages import Page, both
from mnemoscope.web.site import Site

NAV: tuple[tuple[str, str], ...] = (("Layers", "/layers"),)

Number = Annotated[int, Path(ge=0, le=100_000, description="A layer, counted from 0")]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal[""]
"""A number, or nothing where a form's field was left empty."""
Text = Annotated[str, Query(max_length=200, description="Part of the value's top token")]
Named = Annotated[str, Query(max_length=8_000, description="Numbers of memories, apart by commas")]


def router(site: Site) -> APIRouter:
    """The routes of layers."""
    routes = APIRouter()

    @both(routes, site, "/layers", template="layers.html")
    def layers() -> Page:
        """Every layer in a line."""
        return Page("Layers", layers_view(site.edition()))

    @both(routes, site, "/layers/{layer}", template="layer.html", stored=False)
    def layer(
        layer: Number,
        sort: Sort = "memory",
        order: Literal["up", "down"] = "up",
        fires: Literal["any", "never", "some"] = "any",
        agreement: Literal["any", "yes", "no", "none"] = "any",
        kind: Literal["any", "shallow", "semantic", "both", "none"] = "any",
        token: Text = "",
        memories: Named = "",
        rate_from: Bound = "",
        rate_to: Bound = "",
        confidence_from: Bound = "",
        confidence_to: Bound = "",
        norm_from: Bound = "",
        norm_to: Bound = "",
        page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    ) -> Page:
        """One layer: its memories as a table and a picture, and what the questions say of it."""
        bounds = {
            "rate_from": rate_from,
            "rate_to": rate_to,
            "confidence_from": confidence_from,
            "confidence_to": confidence_to,
            "norm_from": norm_from,
            "norm_to": norm_to,
        }
        given = {name: None if bound == "" else float(bound) for name, bound in bounds.items()}
        choice = Choice(sort, order, fires, agreement, kind, token, memories, **given)
        view = layer_view(site.edition(), layer, choice, page=page)
        if page > view["pages"]:
            raise HTTPException(404, f"There is no page {page} of these memories; the last one is {view['pages']}.")

        def drawn() -> dict[str, object]:
            return {"drawing": Markup(_picture(site, layer, choice)), "address": _addresses(choice)}

        return Page(f"Layer {layer}", view, drawn)

    return routes


def _picture(site: Site, layer: int, choice: Choice) -> str:
    """The layer's picture with the chosen memories as points; that of all memories is kept."""

    def draw() -> str:
        from mnemoscope.figures.layer_picture import picture

        edition = site.edition()
        rows = layer_rows(edition, layer)
        shown = chosen(rows.with_row_index("row"), choice)["row"].sort().to_list()
        return picture(
            layers_frame(edition), rows, shown=shown, titles=titles(edition, layer), link=f"/L{layer}.M"
        )

    return draw() if choice.narrowed else site.pages.get(("picture", layer), draw)


def _addresses(choice: Choice) -> dict[str, object]:
    """The addresses that the page leads to: a heading turns its own order round, the rest keeps the choice."""

    def heading(sort: Sort) -> str:
        usual: Literal["up", "down"] = "down" if sort in DOWN_FIRST else "up"
        other: Literal["up", "down"] = "up" if choice.order == "down" else "down"
        return choice.query(sort=sort, order=other if choice.sort == sort else usual) or "?sort=memory"

    def turned(number: int) -> str:
        query = choice.query()
        return f"{query}&page={number}" if query else f"?page={number}"

    return {"heading": heading, "page": turned}
