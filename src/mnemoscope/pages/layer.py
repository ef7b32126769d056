"""The page of a layer: its memories as a table and a picture, chosen and sorted as the address says, and the questions'
numbers of it.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import polars as pl

from mnemoscope.errors import OptionError
from mnemoscope.formatting import format_value, show_token
from mnemoscope.pages.edition import Edition
from mnemoscope.pages.layers import layer_rows
from mnemoscope.pages.page import Page
from mnemoscope.pages.questions import layer_numbers

if TYPE_CHECKING:
    from mnemoscope.figures.layer_picture import Frame

ROWS = 100
"""Memories on one page."""
COLUMNS = {
    "memory": "memory",
    "rate": "rate",
    "confidence": "max_probability",
    "norm": "value_norm",
    "rank": "target_rank",
    "agreement": "agrees",
    "kind": "kind",
    "token": "top_text",
}
"""What rows are sorted by, and the column behind it."""
Sort = Literal["memory", "rate", "confidence", "norm", "rank", "agreement", "kind", "token"]
DOWN_FIRST = ("rate", "confidence", "norm", "agreement")
"""Columns whose largest values are looked for first."""


@dataclass(frozen=True)
class Choice:
    """Which memories of a layer are shown, and in which order; everything that its address says.

    `memories` are numbers of memories, apart by commas; shares are between 0 and 1; an empty bound is none.
    """

    sort: Sort = "memory"
    order: Literal["up", "down"] = "up"
    fires: Literal["any", "never", "some"] = "any"
    agreement: Literal["any", "yes", "no", "none"] = "any"
    kind: Literal["any", "shallow", "semantic", "both", "none"] = "any"
    token: str = ""
    memories: str = ""
    rate_from: float | None = None
    rate_to: float | None = None
    confidence_from: float | None = None
    confidence_to: float | None = None
    norm_from: float | None = None
    norm_to: float | None = None

    def query(self, **changes: Any) -> str:
        """The address's query with these changes, without what goes without saying."""
        changed, plain = replace(self, **changes), Choice()
        said = {
            one.name: f"{value:g}" if isinstance(value, float) else value
            for one in fields(self)
            if (value := getattr(changed, one.name)) != getattr(plain, one.name)
        }
        return f"?{urlencode(said)}" if said else ""

    def heading(self, sort: Sort) -> str:
        """The address of the same memories in this order, turned round where it is the page's own."""
        usual: Literal["up", "down"] = "down" if sort in DOWN_FIRST else "up"
        turned: Literal["up", "down"] = "up" if self.order == "down" else "down"
        return self.query(sort=sort, order=turned if self.sort == sort else usual) or "?sort=memory"

    def page(self, number: int) -> str:
        """The address of another page of the same memories."""
        query = self.query()
        return f"{query}&page={number}" if query else f"?page={number}"

    @property
    def is_narrowed(self) -> bool:
        """Whether any memory may be left out."""
        return replace(self, sort="memory", order="up") != Choice()

    def numbers(self) -> list[int] | None:
        """The memories named, None where none is; raises OptionError for what is not a number."""
        if not self.memories.strip():
            return None
        parts = [part.strip() for part in self.memories.split(",")]
        if wrong := [part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 10)]:
            raise OptionError(f"memories {wrong[0]!r} is not a memory's number; write them like 12,45,77")
        return [int(part) for part in parts]


def choose(rows: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """The rows that the choice leaves, in its order; equal ones by number, and those without a value last."""
    tests: list[pl.Expr] = []
    if choice.fires != "any":
        tests.append(pl.col("positive") == 0 if choice.fires == "never" else pl.col("positive") > 0)
    if choice.agreement != "any":
        agrees = pl.col("agrees")
        tests.append(agrees.is_null() if choice.agreement == "none" else agrees == (choice.agreement == "yes"))
    if choice.kind != "any":
        tests.append(pl.col("kind") == choice.kind)
    if choice.token:
        text = pl.col("top_text").str.to_lowercase()
        tests.append(text.str.contains(choice.token.lower(), literal=True))
    if (numbers := choice.numbers()) is not None:
        tests.append(pl.col("memory").is_in(numbers))
    for name, column in (("rate", "rate"), ("confidence", "max_probability"), ("norm", "value_norm")):
        low, high = getattr(choice, f"{name}_from"), getattr(choice, f"{name}_to")
        tests += [] if low is None else [pl.col(column) >= low]
        tests += [] if high is None else [pl.col(column) <= high]
    found = rows.filter(*tests) if tests else rows
    column = COLUMNS[choice.sort]
    if column == "memory":
        return found.sort("memory", descending=choice.order == "down")
    return found.sort([column, "memory"], descending=[choice.order == "down", False], nulls_last=True)


def layer_page(edition: Edition, layer: int, choice: Choice, *, page: int = 1) -> Page:
    """The page; raises MemoryIdError for a layer that was not mined, OptionError."""
    data = layer_view(edition, layer, choice, page=page)
    return Page(
        "layer.html", f"Layer {layer}", data, lambda: {"drawing": _picture(edition, layer, choice), "address": choice}
    )


def layer_view(edition: Edition, layer: int, choice: Choice, *, page: int) -> dict[str, Any]:
    """One page of the layer's memories, how many there are, and the headline numbers; raises MemoryIdError."""
    rows = layer_rows(edition, layer)
    found = choose(rows, choice)
    pages = max(1, -(-found.height // ROWS))
    place = edition.atlas.layers.index(layer)
    columns = ["memory", "positive", "prefixes", "rate", "largest", "max_probability", "value_norm", "top_token"]
    columns += ["top_text", "target", "target_text", "target_rank", "agrees", "kind", "patterns"]
    listed = found.slice((page - 1) * ROWS, ROWS).select(columns).to_dicts()
    return {
        "layer": layer,
        "memories": rows.height,
        "never": int((rows["positive"] == 0).sum()),
        "agreeing": int(rows["agrees"].sum()),
        "with_target": int(rows["agrees"].is_not_null().sum()),
        "total": found.height,
        "page": page,
        "pages": pages,
        "choice": asdict(choice),
        "rows": [{"name": f"L{layer}.M{row['memory']}", **row} for row in listed],
        "previous": edition.atlas.layers[place - 1] if place else None,
        "next": edition.atlas.layers[place + 1] if place + 1 < len(edition.atlas.layers) else None,
        "numbers": layer_numbers(edition, layer),
    }


def _picture(edition: Edition, layer: int, choice: Choice) -> str:
    """The layer's picture with the chosen memories as points; that of all memories is kept."""

    def draw() -> str:
        from mnemoscope.figures.layer_picture import picture

        rows = layer_rows(edition, layer)
        shown = choose(rows.with_row_index("row"), choice)["row"].sort().to_list()
        titles = _titles(edition, layer)
        return picture(layers_frame(edition), rows, shown=shown, titles=titles, link=f"/L{layer}.M")

    return draw() if choice.is_narrowed else edition.pages.get(("picture", layer), draw)


def layers_frame(edition: Edition) -> "Frame":
    """The axes that the pictures of all layers share."""

    def make() -> "Frame":
        # The room of figures loads the drawing library.
        from mnemoscope.figures.layer_picture import frame

        return frame(edition.atlas, patterns=edition.atlas.has("patterns"))

    return edition.tables.get("layers frame", make)


def _titles(edition: Edition, layer: int) -> list[str]:
    """What each memory's point in the picture says."""

    def make() -> list[str]:
        rows = layer_rows(edition, layer).select("memory", "top_text", "rate", "max_probability")
        return [
            f"L{layer}.M{memory} {'' if text is None else show_token(text)}: fires at {format_value(rate, 'share')},"
            f" largest probability {format_value(most, 'share')}"
            for memory, text, rate, most in rows.iter_rows()
        ]

    return edition.pages.get(("titles", layer), make)
