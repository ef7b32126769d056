"""The page of all layers, each in a line; and a layer's memories as rows, put together once and kept."""

import polars as pl

from mnemoscope.pages.edition import Edition
from mnemoscope.pages.page import Page


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
    return rows.with_columns(
        pl.Series("top_text", texts[0], dtype=pl.String),
        pl.Series("target_text", texts[1], dtype=pl.String),
        agrees=pl.col("top_token") == pl.col("target"),
        kind=pl.col("kind").fill_null("none") if edition.atlas.has("patterns") else pl.col("kind"),
        patterns=pl.col("patterns").fill_null(0) if edition.atlas.has("patterns") else pl.col("patterns"),
    ).sort("memory")


def _kinds(edition: Edition, layer: int) -> pl.DataFrame:
    """What the triggers of each memory share: shallow, semantic or both; and how many patterns there are."""
    if not edition.atlas.has("patterns"):
        return pl.DataFrame(schema={"memory": pl.Int32, "kind": pl.String, "patterns": pl.UInt32})
    found = edition.pages.get(
        "pattern kinds", lambda: edition.atlas.table("patterns").select("layer", "memory", "kind").rechunk()
    )
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


def layers_page(edition: Edition) -> Page:
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
    return Page("layers.html", "Layers", {"layers": found})


def _share(rows: pl.DataFrame, kinds: tuple[str, ...]) -> float | None:
    """The share of memories with such a pattern; None where no patterns were made."""
    return None if rows["kind"].null_count() else int(rows["kind"].is_in(kinds).sum()) / max(1, rows.height)
