"""B7: whether memories add to what they read, or take it away: from weights alone.

The key (of a gated layer the up row) is compared with the value, both as directions of the stream. The control is the
cosine of a key with another memory's value of the layer, or of the expert: by chance 0.25 % lie beyond a threshold.
"""

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import in_and_out_columns, strongly_active
from mnemoscope.foundation.intervals import Estimate, clustered_share, mean, share
from mnemoscope.questions.answer_builder import MEMORIES, AnswerBuilder, complement
from mnemoscope.questions.question import Number, Paper, Question
from mnemoscope.questions.sources import by_layer, read_layers

_STRONG = "of their strongly active positions, those with an activation {} zero"

QUESTION = Question(
    "input_output",
    title="what memories do to what they read",
    paper=Paper("B7", "beyond", "How many memories add to what they read, and how many take it away?"),
    numbers=(
        Number("adds", "share", "memories that add to what they read"),
        Number("removes", "share", "memories that remove what they read"),
        Number("chance", "share", "either by chance: pairs of a key and another memory's value"),
        Number("cosine", "number", "cosine of key (gated: up row) and value, mean"),
        *(
            Number(f"{name}_{side}_zero", "share", f"{who}: {_STRONG.format(side)}")
            for name, who in (("adds", "those that add"), ("removes", "those that remove"))
            for side in ("above", "below")
        ),
    ),
    main="adds",
    headline=("adds", "removes", "cosine", "adds_above_zero", "removes_above_zero"),
    layer_page=("adds", "removes"),
    may_lack=("roles",),
    nothing="no memory of this atlas has a key and a value that can be compared",
    interval=MEMORIES,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    activity = read_layers(atlas, "activity")
    strong = activity.select("layer", "memory", "sampled").hstack(strongly_active(activity))
    strong = strong.with_columns(pl.col("strong", "strong_negative") * pl.col("sampled"))
    rows = read_layers(atlas, "roles").with_columns(in_and_out_columns()).filter(pl.col("adds").is_not_null())
    rows, builder = rows.join(strong, on=["layer", "memory"], how="left"), AnswerBuilder(QUESTION)
    for layer, here in by_layer(atlas, rows):
        for name in ("adds", "removes"):
            builder.add(layer, name, share(int(here[name].sum()), here.height))
            signed = here.filter(pl.col(name)).drop_nulls(["up_value", "strong", "strong_negative"])
            above = clustered_share(signed["strong"], signed["strong"] + signed["strong_negative"])
            builder.add_named(layer, {f"{name}_above_zero": above, f"{name}_below_zero": complement(above)})
        builder.add(layer, "chance", Estimate(0.0025 if here.height else None, here.height))
        builder.add(layer, "cosine", mean(here["cosine"]))
    return builder.frame()
