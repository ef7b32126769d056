"""The pages of layers: a table of all layers; and one layer's memories as a table and a picture.

A layer's rows are computed once and cached; the address holds the filter and the order.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from mnemoscope.atlas.features import AT_WORK, FEATURE_COLUMNS, STRONG, clear_columns, strongly_active, value_rows
from mnemoscope.errors import OptionError
from mnemoscope.foundation.formatting import format_value, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.patterns.labels import kind_below_zero
from mnemoscope.show.figures.layer_picture import frame, picture
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Address, Page, PageKind, PageNotFound
from mnemoscope.show.pages.questions import layer_numbers

ROWS = 100
NAMED = 1_000
"""Most memories of a layer whose written page lists exactly these; with more, it lists all."""
COLUMNS = {
    "strong": "most_active",
    "confidence": "max_probability",
    "work": "most_at_work",
    "norm": "value_norm",
    "rank": "target_rank",
    "agreement": "agrees",
    "importance": "attribution",
    "token": "top_text",
}
"""The columns of the sort orders that have another name."""
Sort = Literal[
    "clear",
    "memory",
    "strong",
    "rate",
    "confidence",
    "work",
    "norm",
    "rank",
    "agreement",
    "importance",
    "cosine",
    "kind",
    "token",
]
DOWN_FIRST = ("clear", "strong", "rate", "confidence", "work", "norm", "agreement", "importance", "cosine")
"""Columns sorted in descending order first."""
Bound = Annotated[
    Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal[""] | SkipJsonSchema[None],
    AfterValidator(lambda bound: None if bound == "" else bound),
]
"""A number, or None for an empty form field."""
LayerNumber = Annotated[int, Field(ge=0, le=100_000, description="A layer, counted from 0")]


class Choice(Address, frozen=True):
    """The filter and order of a layer's memories; a memory of two features is chosen for either. Shares are between 0
    and 1. The default order begins with the memories that promote their token most clearly.
    """

    sort: Sort = "clear"
    order: Literal["up", "down"] = "down"
    fires: Literal["any", "never", "some"] = "any"
    agreement: Literal["any", "yes", "no", "none"] = "any"
    kind: Literal["any", "shallow", "semantic", "both", "none"] = "any"
    promotes: Literal["any", "yes", "no"] = "any"
    effect: Literal["any", "adds", "removes", "neither"] = "any"
    label: Annotated[str, Field(max_length=200, description="Part of a feature's label")] = ""
    token: Annotated[str, Field(max_length=200, description="Part of the value's top token")] = ""
    memories: Annotated[str, Field(max_length=8_000, description="Numbers of memories, separated by commas")] = ""
    strong_from: Bound = None
    strong_to: Bound = None
    rate_from: Bound = None
    rate_to: Bound = None
    confidence_from: Bound = None
    confidence_to: Bound = None
    norm_from: Bound = None
    norm_to: Bound = None
    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1

    def heading(self, sort: Sort) -> str:
        usual: Literal["up", "down"] = "down" if sort in DOWN_FIRST else "up"
        turned: Literal["up", "down"] = "up" if self.order == "down" else "down"
        query = self.query(sort=sort, order=turned if self.sort == sort else usual, page=1)
        return f"?{query or 'sort=clear'}"

    def at_page(self, number: int) -> str:
        return f"?{self.query(page=number) or 'page=1'}"

    def numbers(self) -> list[int] | None:
        """The listed memories, None without a list."""
        if not self.memories.strip():
            return None
        parts = [part.strip() for part in self.memories.split(",")]
        if wrong := [part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 10)]:
            raise OptionError(f"memories {wrong[0]!r} is not a memory's number; write them like 12,45,77")
        return [int(part) for part in parts]


def choose(rows: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """The filtered rows in order; ties by number, rows without a value last."""
    tests: list[pl.Expr] = []
    if choice.fires != "any":
        tests.append(pl.col("positive") == 0 if choice.fires == "never" else pl.col("positive") > 0)
    if choice.agreement != "any":
        agrees = pl.col("agrees")
        tests.append(agrees.is_null() if choice.agreement == "none" else agrees == (choice.agreement == "yes"))
    if choice.kind != "any":
        kinds = pl.col("kind") == choice.kind, pl.col("kind_negative").fill_null("none") == choice.kind
        tests.append(pl.all_horizontal(kinds) if choice.kind == "none" else pl.any_horizontal(kinds))
    if choice.promotes != "any":
        promotes = pl.any_horizontal(pl.col("promotes", "promotes_negative").fill_null(value=False))
        tests.append(promotes if choice.promotes == "yes" else ~promotes)
    if choice.effect != "any":
        effects = pl.col("adds", "removes")
        tests.append(~pl.any_horizontal(effects) if choice.effect == "neither" else pl.col(choice.effect))
    if choice.label:
        labels = pl.concat_str("label", "label_negative", separator="\n", ignore_nulls=True).str.to_lowercase()
        tests.append(labels.str.contains(choice.label.lower(), literal=True))
    if choice.token:
        tests.append(pl.col("top_text").str.to_lowercase().str.contains(choice.token.lower(), literal=True))
    if (numbers := choice.numbers()) is not None:
        tests.append(pl.col("memory").is_in(numbers))
    single = {"rate": ["rate"], "confidence": ["max_probability"], "norm": ["value_norm"], "strong": [*STRONG]}
    for name, columns in single.items():
        low, high = getattr(choice, f"{name}_from"), getattr(choice, f"{name}_to")
        if low is not None or high is not None:
            bounds = (0 if low is None else low), (math.inf if high is None else high)
            tests.append(pl.any_horizontal(pl.col(column).is_between(*bounds) for column in columns))
    kept = rows.filter(*tests) if tests else rows
    column = COLUMNS.get(choice.sort, choice.sort)
    return kept.sort([column, "memory"], descending=[choice.order == "down", False], nulls_last=True)


def layer_rows(edition: Edition, layer: int) -> pl.DataFrame:
    """A row for every memory of the layer; its kind is null where patterns were not found yet."""
    edition.atlas.memories(layer)
    return edition.pages.get(("layer rows", layer), lambda: _rows(edition, layer))


def _rows(edition: Edition, layer: int) -> pl.DataFrame:
    atlas = edition.atlas
    counted = ["memory", "positive", "prefixes", "min", "max", "sampled", "histogram"]
    activity = atlas.table("activity", layer=layer, columns=counted)
    activity = activity.hstack(strongly_active(activity)).select(
        "memory",
        "positive",
        "prefixes",
        *STRONG,
        rate=pl.col("positive") / pl.col("prefixes").clip(1),
        largest=pl.col("max"),
    )
    numbers = ("memory", "max_probability", *AT_WORK, "value_norm", "target", "target_rank")
    read = [*numbers, "top_tokens", "bottom_tokens", *FEATURE_COLUMNS]
    values = value_rows(atlas, layer, list(dict.fromkeys(read))).select(
        *numbers,
        *clear_columns(),
        top_token=pl.col("top_tokens").list.first(),
        bottom_token=pl.col("bottom_tokens").list.first(),
    )
    rows = activity.join(values, on="memory", how="full", coalesce=True)
    labels, importance = edition.labels(layer), pl.DataFrame(schema={"memory": pl.Int32, "attribution": pl.Float32})
    above, below = (labels.filter(sign=sign).select("memory", "label") for sign in (1, -1))
    below = below.select("memory", label_negative="label", kind_negative=kind_below_zero(pl.col("label")))
    if atlas.has("importance", layer=layer):
        importance = atlas.table("importance", layer=layer, columns=importance.columns)
    both = above.join(below, on="memory", how="full", coalesce=True)
    for table in (_kinds(edition, layer), both, importance, edition.in_and_out(layer)):
        rows = rows.join(table, on="memory", how="left")
    texts = {name: atlas.token_text(rows[f"{name}_token"].to_list()) for name in ("top", "bottom")}
    return rows.with_columns(
        *(pl.Series(f"{name}_text", tokens, dtype=pl.String) for name, tokens in texts.items()),
        pl.Series("target_text", atlas.token_text(rows["target"].to_list()), dtype=pl.String),
        most_active=pl.max_horizontal(STRONG),
        most_at_work=pl.max_horizontal(AT_WORK),
        agrees=pl.col("top_token") == pl.col("target"),
        kind=pl.col("kind").fill_null("none") if edition.has_patterns else pl.col("kind"),
        patterns=pl.col("patterns").fill_null(0) if edition.has_patterns else pl.col("patterns"),
    ).sort("memory")


def _kinds(edition: Edition, layer: int) -> pl.DataFrame:
    if not edition.has_patterns:
        return pl.DataFrame(schema={"memory": pl.Int32, "kind": pl.String, "patterns": pl.UInt32})
    kinds = edition.read_current(
        "pattern kinds", lambda: edition.atlas.table("patterns", columns=["layer", "memory", "kind"]).rechunk()
    )
    several = pl.col("kind").n_unique() > 1
    return (
        kinds.filter(pl.col("layer") == layer)
        .group_by("memory")
        .agg(pl.when(several).then(pl.lit("both")).otherwise(pl.col("kind").first()).alias("kind"), patterns=pl.len())
    )


def layers_page(edition: Edition) -> Page:
    """Every layer in a line."""
    layers = []
    for layer in edition.atlas.layers:
        rows = layer_rows(edition, layer)
        means = {name: rows[name].mean() for name in (*STRONG, "rate", "max_probability", *AT_WORK)}
        clear = {name: rows[name].mean() for name in ("promotes", "promotes_negative", "adds", "removes")}
        kinds = rows["kind"]
        shares = {
            kind: None if kinds.null_count() else int(kinds.is_in([kind, "both"]).sum()) / max(1, rows.height)
            for kind in ("shallow", "semantic")
        }
        layers.append({"layer": layer, **_counts(rows), **means, **clear, **shares})
    compared = any(one["adds"] is not None for one in layers)
    return Page("layers.html", "Layers", {"layers": layers, "compared": compared})


def _counts(rows: pl.DataFrame) -> dict[str, int]:
    return {
        "memories": rows.height,
        "never": int((rows["positive"] == 0).sum()),
        "agreeing": int(rows["agrees"].sum()),
        "with_target": int(rows["agrees"].is_not_null().sum()),
    }


def layer_page(edition: Edition, layer: LayerNumber, address: Choice) -> Page:
    """One layer: its memories as a table and a picture, and what the questions find in it."""
    rows = layer_rows(edition, layer)
    selected = choose(rows, address)
    pages = max(1, -(-selected.height // ROWS))
    if address.page > pages:
        raise PageNotFound(f"There is no page {address.page} of these memories; the last one is {pages}.")
    place = edition.atlas.layers.index(layer)
    columns = ["memory", "positive", "prefixes", "rate", "largest", *STRONG, "max_probability", *AT_WORK]
    columns += ["label", "label_negative", "promotes", "promotes_negative", "bottom_token", "bottom_text"]
    columns += ["value_norm", "top_token", "top_text", "target", "target_text", "target_rank", "agrees"]
    columns += ["kind", "kind_negative", "patterns", "attribution", "cosine", "adds", "removes"]
    listed = selected.slice((address.page - 1) * ROWS, ROWS).select(columns).to_dicts()
    data = {
        "layer": layer,
        **_counts(rows),
        "total": selected.height,
        "page": address.page,
        "pages": pages,
        "choice": address.model_dump(exclude={"page"}),
        "rows": [{"name": str(edition.atlas.name(layer, row["memory"])), **row} for row in listed],
        "previous": edition.atlas.layers[place - 1] if place else None,
        "next": edition.atlas.layers[place + 1] if place + 1 < len(edition.atlas.layers) else None,
        "numbers": layer_numbers(edition, layer),
        "important": bool(rows["attribution"].count()),
        "compared": bool(rows["cosine"].count()),
        "signed": bool(rows["most_active"].count() and rows["strong_negative"].count()),
    }

    def drawing() -> str:
        return "" if edition.atlas.manifest.keys_only else _picture(edition, layer, address)

    return Page("layer.html", f"Layer {layer}", data, lambda: {"drawing": drawing(), "address": address})


def _picture(edition: Edition, layer: int, choice: Choice) -> str:
    """The layer's picture with the selected memories as points."""
    whole = edition.tables.get("layers frame", lambda: frame(edition.atlas, patterns=edition.has_patterns))
    selected = set(choose(layer_rows(edition, layer), choice)["memory"].to_list())
    points, titles, links = edition.pages.get(("points", layer), lambda: _points(edition, layer))
    places = [place for place, memory in enumerate(points["memory"].to_list()) if memory in selected]
    return picture(whole, points, shown=places, titles=titles, links=links)


def _points(edition: Edition, layer: int) -> tuple[pl.DataFrame, list[str], list[str]]:
    """A row for every feature of the layer, with its title and its link."""
    rows = layer_rows(edition, layer)
    names = [str(edition.atlas.name(layer, memory)) for memory in rows["memory"].to_list()]
    above = rows.with_columns(pl.Series("name", names, dtype=pl.String), pl.lit(value=False).alias("negative"))
    below = above.filter(pl.col("strong_negative").is_not_null()).with_columns(
        strong="strong_negative",
        working_probability="working_probability_negative",
        label="label_negative",
        top_text="bottom_text",
        negative=pl.lit(value=True),
        kind=pl.col("kind_negative").fill_null("none") if edition.has_patterns else pl.col("kind_negative"),
    )
    points = pl.concat([above, below])
    titles = [_title(row) for row in points.to_dicts()]
    return points, titles, [f"/{name}" for name in points["name"]]


def _title(row: Mapping[str, Any]) -> str:
    clear = row["promotes_negative" if row["negative"] else "promotes"]
    label = row["label"] or (f"promotes {show_token(row['top_text'])}" if clear else "no clear token")
    sign = " below zero" if row["negative"] else ""
    how, often = ("fires", "rate") if row["strong_negative"] is None else ("strongly active", "strong")
    return (
        f"{row['name']}{sign}: {label}; {how} at {format_value(row[often], 'share')}, largest"
        f" probability at its typical activation {format_value(row['working_probability'], 'share')}"
    )


def _layer_instances(edition: Edition, memories: Sequence[MemoryId] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every layer, with the chosen memories only, in several pages if needed; in advance with all, its first page."""
    for layer in edition.atlas.layers:
        numbers = [edition.atlas.number(one) for one in memories or () if one.layer == layer]
        listed = ",".join(map(str, numbers)) if len(numbers) <= NAMED else ""
        rows = 0 if memories is None else len(numbers) if listed else ROWS
        for page in range(1, max(1, -(-rows // ROWS)) + 1):
            choice = Choice(memories=listed, page=page)
            yield f"/layers/{layer}?{choice.query()}".rstrip("?"), {"layer": layer, "address": choice}


PAGES = (
    PageKind(
        "layers",
        "/layers",
        layers_page,
        label="Layers",
        exported=True,
        about="all memories of one, sorted and filtered, as a table and as a picture.",
    ),
    PageKind("layer", "/layers/{layer}", layer_page, exported=True, instances=_layer_instances, stored=False),
)
