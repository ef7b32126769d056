"""The data of a layer's page: its memories as rows, chosen and sorted as the address says, and the questions' numbers.

A layer's rows are put together once and kept; choosing among them is a matter of milliseconds.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal
from urllib.parse import urlencode

import polars as pl

from mnemoscope.errors import AtlasUnfinished, OptionError
from mnemoscope.formatting import format_value, show_token
from mnemoscope.pages.edition import Edition
from mnemoscope.pages.questions import layer_numbers

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

    @property
    def narrowed(self) -> bool:
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


def layer_rows(edition: Edition, layer: int) -> pl.DataFrame:
    """A row for every memory of the layer: rate, confidence, norm, tokens, agreement, kind (null: no patterns made)."""
    edition.atlas.memories(layer)
    return edition.pages.get(("layer rows", layer), lambda: _rows(edition, layer))


def _rows(edition: Edition, layer: int) -> pl.DataFrame:
    atlas = edition.atlas
    activity = atlas.table("activity", layer=layer).select(
        "memory", "positive", "prefixes", rate=pl.col("positive") / pl.col("prefixes").clip(1), largest=pl.col("max")
    )
    values = atlas.table("values", layer=layer).select(
        "memory", "max_probability", "value_norm", "target", "target_rank", top_token=pl.col("top_tokens").list.first()
    )
    rows = activity.join(values, on="memory", how="full", coalesce=True).join(
        _kinds(edition, layer), on="memory", how="left"
    )
    texts = [atlas.token_text(rows[name].to_list()) for name in ("top_token", "target")]
    made = _patterns(edition) is not None
    return rows.with_columns(
        pl.Series("top_text", texts[0], dtype=pl.String),
        pl.Series("target_text", texts[1], dtype=pl.String),
        agrees=pl.col("top_token") == pl.col("target"),
        kind=pl.col("kind").fill_null("none") if made else pl.col("kind"),
        patterns=pl.col("patterns").fill_null(0) if made else pl.col("patterns"),
    ).sort("memory")


def _patterns(edition: Edition) -> pl.DataFrame | None:
    try:
        return edition.pages.get(
            ("pattern kinds",), lambda: edition.atlas.table("patterns").select("layer", "memory", "kind").rechunk()
        )
    except AtlasUnfinished:
        return None


def _kinds(edition: Edition, layer: int) -> pl.DataFrame:
    """What the triggers of each memory share: shallow, semantic or both; and how many patterns there are."""
    found = _patterns(edition)
    if found is None:
        return pl.DataFrame(schema={"memory": pl.Int32, "kind": pl.String, "patterns": pl.UInt32})
    shallow, semantic = (pl.col("kind") == "shallow").any(), (pl.col("kind") == "semantic").any()
    return (
        found.filter(pl.col("layer") == layer)
        .group_by("memory")
        .agg(
            patterns=pl.len(),
            both=pl.when(shallow & semantic)
            .then(pl.lit("both"))
            .otherwise(pl.when(shallow).then(pl.lit("shallow")).otherwise(pl.lit("semantic"))),
        )
        .select("memory", pl.col("both").alias("kind"), pl.col("patterns").cast(pl.UInt32))
    )


def chosen(rows: pl.DataFrame, choice: Choice) -> pl.DataFrame:
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


def layer_view(edition: Edition, layer: int, choice: Choice, *, page: int) -> dict[str, Any]:
    """One page of the layer's memories, how many there are, and the headline numbers; raises MemoryIdError."""
    rows = layer_rows(edition, layer)
    found = chosen(rows, choice)
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


def titles(edition: Edition, layer: int) -> list[str]:
    """What each memory's point in the picture says."""

    def make() -> list[str]:
        rows = layer_rows(edition, layer).select("memory", "top_text", "rate", "max_probability")
        return [
            f"L{layer}.M{memory} {'' if text is None else show_token(text)}: fires at {format_value(rate, 'share')},"
            f" largest probability {format_value(most, 'share')}"
            for memory, text, rate, most in rows.iter_rows()
        ]

    return edition.pages.get(("titles", layer), make)


def layers_view(edition: Edition) -> dict[str, Any]:
    """Every layer in a line: how many memories, how many never fire, how many agree, and the headline numbers."""
    found = []
    for layer in edition.atlas.layers:
        rows = layer_rows(edition, layer)
        found.append(
            {
                "layer": layer,
                "memories": rows.height,
                "never": int((rows["positive"] == 0).sum()),
                "rate": rows["rate"].mean(),
                "agreeing": int(rows["agrees"].sum()),
                "with_target": int(rows["agrees"].is_not_null().sum()),
                "max_probability": rows["max_probability"].mean(),
                "shallow": _share(rows, ("shallow", "both")),
                "semantic": _share(rows, ("semantic", "both")),
            }
        )
    return {"layers": found}


def _share(rows: pl.DataFrame, kinds: tuple[str, ...]) -> float | None:
    """The share of memories with such a pattern; None where no patterns were made."""
    return None if rows["kind"].null_count() else int(rows["kind"].is_in(kinds).sum()) / max(1, rows.height)
