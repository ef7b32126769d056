"""The page of routing in a mixture of experts: which expert gets which tokens, and what its memories share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnemoscope.foundation.intervals import Estimate
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Page, PageKind, PageNotFound

if TYPE_CHECKING:
    from mnemoscope.show.figures.routing import LayerRouting


def routing_page(edition: Edition) -> Page:
    """Which experts get which tokens, of a model of experts."""
    if not edition.atlas.has("routing"):
        raise PageNotFound("The model has no experts, so nothing is routed.")
    layers = edition.mined.get("routing", lambda: _read(edition))
    return Page("routing.html", "Routing", {"layers": routing_views(edition, layers)}, lambda: {
        "drawing": _drawing(edition, layers)
    })  # fmt: skip


def routing_views(edition: Edition, layers: Sequence["LayerRouting"]) -> list[dict[str, Any]]:
    vocabulary = edition.atlas.vocabulary
    return [
        {
            "layer": one.layer,
            "evenness": one.evenness,
            "most": max(routed, key=lambda row: row["tokens"]),
            "fewest": min(routed, key=lambda row: row["tokens"]),
            "same": _estimate(one.same),
            "different": _estimate(one.different),
            "experts": [
                row
                | {
                    "fires_on": [vocabulary.token(token) for token in row["fires_on"]],
                    "first": _first(edition, one, row),
                }
                for row in one.experts
            ],
        }
        for one in layers
        if (routed := [row for row in one.experts if row["first_share"] is not None])
    ]


def _read(edition: Edition) -> list["LayerRouting"]:
    # Imports the drawing library.
    from mnemoscope.show.figures.routing import routing

    return routing(edition.atlas)


def _drawing(edition: Edition, layers: list["LayerRouting"]) -> str:
    def draw() -> str:
        from mnemoscope.show.figures.page_svg import page_svg
        from mnemoscope.show.figures.routing import routing_chart

        label = "Tokens of every routed expert by layer, times an even share"
        return page_svg(routing_chart(layers), name="routing", label=label, silent=True)

    return edition.pages.get("routing drawing", draw)


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "count": estimate.count, "low": estimate.low, "high": estimate.high}


def _first(edition: Edition, layer: "LayerRouting", row: dict[str, Any]) -> str:
    return str(edition.atlas.numbering(layer.layer).name_in(layer.layer, row["expert"], 0))


PAGES = (
    PageKind(
        "routing", "/routing", routing_page, label="Routing", needs="routing",
        about="which expert gets which tokens, and what its memories share.",
    ),
)  # fmt: skip
