"""What an atlas knows of the memories in a list: labels, promoted tokens, triggers."""

from collections.abc import Sequence
from functools import cache

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.memory_names import MemoryId

_PROMOTED = 5


def with_labels(memories: pl.DataFrame, atlas: Atlas | None, sign: pl.Expr | None = None) -> pl.DataFrame:
    """The list with the `label` of each memory's feature of a sign, if not +1; null without one."""
    if atlas is None or not atlas.has("labels"):
        return memories.with_columns(label=pl.lit(None, pl.String))
    known = atlas.table("labels", columns=["layer", "memory", "sign", "label"])
    names = [str(atlas.name(layer, memory)) for layer, memory in known.select("layer", "memory").iter_rows()]
    labels = known.select("label", memory=pl.Series(names, dtype=pl.String), sign=pl.col("sign").cast(pl.Int32))
    signed = memories.with_columns(sign=(pl.lit(1) if sign is None else sign).cast(pl.Int32))
    return signed.join(labels, on=["memory", "sign"], how="left", maintain_order="left").drop("sign")


def about_memories(
    memories: pl.DataFrame, atlas: Atlas | None, tokens: Sequence[str], *, coefficient: str = "coefficient"
) -> pl.DataFrame:
    """The list with the `token` at each position, and, from an atlas, what is known of each memory and the sign of its
    coefficient: `label`, `promotes` (five tokens) and `trigger` (the best one's text).
    """
    positive = pl.col(coefficient) > 0
    memories = memories.with_columns(
        pl.Series("token", [tokens[position] for position in memories["position"]], dtype=pl.String)
    )
    memories = with_labels(memories, atlas, pl.when(positive).then(1).otherwise(-1))
    if atlas is None:
        return memories

    @cache
    def about(name: str, positive: bool) -> tuple[list[str], str | None]:
        memory = MemoryId.parse(name)
        if memory.layer not in atlas.layers:
            return [], None
        known = atlas[memory]
        best = known.triggers(sign=1 if positive else -1).head(1)
        promotes = known.value()["top_texts" if positive else "bottom_texts"][0].to_list()[:_PROMOTED]
        return promotes, best["text"][0] if best.height else None

    found = [about(*row) for row in memories.select("memory", positive).iter_rows()]
    return memories.with_columns(
        pl.Series("promotes", [promotes for promotes, _ in found], dtype=pl.List(pl.String)),
        pl.Series("trigger", [trigger for _, trigger in found], dtype=pl.String),
    )
