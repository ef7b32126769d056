"""The values of every mined layer, one row per memory: what each ranks first, how sure it is, and its target.

Shared by the questions of the paper's section 4 (Figures 4-6); asks none itself.
"""

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.questions.sources import needed


def values(atlas: Atlas) -> pl.DataFrame:
    """layer, memory, top, target, target_rank (null without target), max_probability, value_norm, log_probability.

    `top` is the token that the value ranks first, `log_probability` the mean log probability of the next tokens of its
    triggers. Sorted by layer, memory. Raises AtlasUnfinished, AtlasDamaged.
    """
    frames = [
        needed(atlas, "values", layer=layer).select(
            "memory",
            "target",
            "target_rank",
            "max_probability",
            "value_norm",
            layer=pl.lit(layer, pl.Int16),
            top=pl.col("top_tokens").list.first(),
            log_probability="trigger_log_probability",
        )
        for layer in atlas.layers
    ]
    return pl.concat(frames).sort("layer", "memory").with_columns(agrees=pl.col("top") == pl.col("target"))


def next_tokens(atlas: Atlas, layer: int, *, best: int | None = None) -> pl.DataFrame:
    """The positive triggers of a layer (the `best` ones of each memory): memory, next_token (null at an end)."""
    rows = needed(atlas, "triggers", layer=layer).filter(pl.col("sign") == 1)
    if best is not None:
        rows = rows.filter(pl.col("rank") < best)
    return rows.select("memory", "next_token")
