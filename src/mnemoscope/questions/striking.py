"""The memories that show best what a memory is: a confident value that comes true after its own triggers.

score = largest probability of the value's distribution x share of its best triggers that the value's top token follows;
a trigger at the end of its sentence is one that it does not follow. Only memories whose best triggers have enough
different prefixes, and one memory for each top token. A way to choose examples, not a question of the paper.
"""

import polars as pl

from mnemoscope.atlas import Atlas

PREFIXES = 5
"""Different prefixes that they must have."""


def striking(atlas: Atlas, count: int = 10) -> pl.DataFrame:
    """The `count` most striking memories, best first.

    Columns: layer, memory, score, max_probability, agreement (share of the best triggers that the top token follows),
    prefixes (different ones among the best triggers), top_token.
    """
    found = pl.concat([_scores(atlas, layer) for layer in atlas.layers])
    ordered = found.sort(["score", "layer", "memory"], descending=[True, False, False])
    return ordered.unique("top_token", keep="first", maintain_order=True).head(count)


def _scores(atlas: Atlas, layer: int) -> pl.DataFrame:
    values = atlas.table("values", layer=layer).select(
        "memory", "max_probability", top_token=pl.col("top_tokens").list.first()
    )
    shares = (
        atlas.best_triggers(layer)
        .join(values, on="memory")
        .group_by("memory")
        .agg(
            prefixes=pl.col("prefix_group").n_unique(),
            agreement=(pl.col("next_token") == pl.col("top_token")).fill_null(False).mean(),
        )
        .filter(pl.col("prefixes") >= PREFIXES)
    )
    return (
        values.join(shares, on="memory")
        .with_columns(
            layer=pl.lit(layer, pl.Int32),
            score=(pl.col("max_probability") * pl.col("agreement")).fill_null(0.0).cast(pl.Float64),
        )
        .filter(pl.col("score") > 0)
        .select("layer", "memory", "score", "max_probability", "agreement", "prefixes", "top_token")
    )
