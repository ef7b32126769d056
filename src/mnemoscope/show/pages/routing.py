"""The page of routing in a mixture of experts: which expert gets which tokens, and what its memories share."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Page, PageKind, PageNotFound

if TYPE_CHECKING:
    from mnemoscope.show.figures.routing import LayerRouting


def routing_page(edition: Edition) -> Page:
    """Which experts get which tokens, of a model of experts."""
    if not edition.atlas.has("routing"):
        raise PageNotFound("The model has no experts, so nothing is routed.")
    # Import the drawing library.
    from mnemoscope.show.figures.page_svg import page_svg
    from mnemoscope.show.figures.routing import routing, routing_chart

    layers = edition.mined.get("routing", lambda: routing(edition.atlas))

    def draw() -> str:
        label = "Tokens of every routed expert by layer, times an even share"
        return page_svg(routing_chart(layers), name="routing", label=label, silent=True)

    data = {"layers": routing_views(edition, layers)}
    return Page("routing.html", "Routing", data, lambda: {"drawing": edition.pages.get("routing drawing", draw)})


def routing_views(edition: Edition, layers: Sequence["LayerRouting"]) -> list[dict[str, Any]]:
    vocabulary = edition.atlas.vocabulary
    return [
        {
            "layer": one.layer,
            "evenness": one.evenness,
            "most": max(routed, key=lambda row: row["tokens"]),
            "fewest": min(routed, key=lambda row: row["tokens"]),
            "same": asdict(one.same),
            "different": asdict(one.different),
            "experts": [
                row
                | {
                    "fires_on": [vocabulary.token(token) for token in row["fires_on"]],
                    "first": str(edition.atlas.numbering(one.layer).name_in(one.layer, row["expert"], 0)),
                }
                for row in one.experts
            ],
        }
        for one in layers
        if (routed := [row for row in one.experts if row["first_share"] is not None])
    ]


PAGES = (
    PageKind(
        "routing",
        "/routing",
        routing_page,
        label="Routing",
        needs="routing",
        about="which expert gets which tokens, and what its memories share.",
    ),
)
