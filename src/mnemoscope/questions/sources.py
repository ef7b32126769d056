"""What the questions read of an atlas, with one plain line where it is not there: which table, and what makes it.

Reads tables and facts of the manifest; computes nothing.
"""

import polars as pl
import polars.selectors as cs

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.tables import rebuild_command
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished

_SWITCHED_OFF = {"removals": "removals", "prefixes": "prefixes", "predictions": "prefixes"}
"""Tables that are empty because the plan asked for none, and the plan's entry that says so."""

_FILLED = ("activity", "predictions", "prefixes", "removals", "triggers", "values")
"""Tables whose integers (signs aside) are not below 0 and whose numbers are finite, or null where not defined."""


def require_table(atlas: Atlas, name: str, *, layer: int | None = None) -> pl.DataFrame:
    """All rows of a table that a question cannot do without, none of them left unfilled.

    Raises AtlasUnfinished, AtlasDamaged.
    """
    refuse_part(atlas)
    option = _SWITCHED_OFF.get(name)
    plan = atlas.manifest.plan
    if option is not None and option in plan and plan[option] in (0, "0"):
        raise AtlasUnfinished(
            f"{atlas.path} has an empty table {name} (--{option} 0); make it with"
            f" {rebuild_command(atlas.path, name, atlas.manifest)}"
        )
    table = atlas.table(name, layer=layer)
    if name in _FILLED:
        _refuse_impossible(atlas, name, table)
    return table


def _refuse_impossible(atlas: Atlas, name: str, table: pl.DataFrame) -> None:
    """Raises AtlasDamaged where a number is one that no run writes: a negative count, token or rank, NaN, infinity."""
    wrong = table.select(
        (cs.integer() - cs.by_name("sign", require_all=False)).lt(0).fill_null(False),
        (~cs.float().is_finite()).fill_null(False),
    )
    for column in wrong.columns:
        if rows := int(wrong[column].sum()):
            value = table.filter(wrong[column])[column][0]
            raise AtlasDamaged(
                f"{atlas.path}: table {name} holds {value} as {column} in {rows:,} of its rows, which no run writes;"
                " mine the atlas again"
            )


def refuse_part(atlas: Atlas) -> None:
    """Raises AtlasUnfinished for a part of an atlas, which has no table that a question could be asked of."""
    if part := atlas.manifest.part:
        raise AtlasUnfinished(f"{atlas.path} is {part}; join all parts with `mnemoscope merge`, then ask")


def plan_seed(atlas: Atlas) -> int:
    """The seed of the plan; draws of the answers follow it."""
    return int(atlas.manifest.plan.get("seed", 0))


def model_layers(atlas: Atlas) -> int:
    """Layers of the model, mined or not."""
    return len(atlas.manifest.model.sizes.memories)


def projection(atlas: Atlas, *names: str) -> dict[str, str]:
    """Which projection the manifest says was used for values, votes or streams (definitions.md section 2)."""
    usual = {"values": "gain", "votes": "gain", "streams": "lens"}
    return {name: atlas.manifest.projections.get(name, usual[name]) for name in names}


def values(atlas: Atlas) -> pl.DataFrame:
    """The values of every mined layer, one row per memory, sorted by layer and memory.

    Columns: layer, memory, top (the token that the value ranks first), target, target_rank (null without target),
    agrees (top is the target), max_probability, value_norm, log_probability (the mean of the next tokens of its
    triggers). Raises AtlasUnfinished, AtlasDamaged.
    """
    frames = [
        require_table(atlas, "values", layer=layer).select(
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
    rows = require_table(atlas, "triggers", layer=layer).filter(pl.col("sign") == 1)
    if best is not None:
        rows = rows.filter(pl.col("rank") < best)
    return rows.select("memory", "next_token")
