"""B6: how few memories matter to the predictions, and whether the large ones are those that do.

By layer and over all memories: how much of the sum of |direct effect|, of |attribution| and of size (mean |m| times the
norm of the value, over the mined text) the largest memories hold; and rank correlations of the three.
"""

import math
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import mean_magnitude
from mnemoscope.foundation.intervals import NOTHING, Estimate, Z, clustered_share, share
from mnemoscope.questions.answer_builder import AnswerBuilder
from mnemoscope.questions.question import Number, Paper, Question
from mnemoscope.questions.sources import by_layer, read_layers

EFFECTS = ("direct", "attribution")
MEASURES = (*EFFECTS, "size")
PAIRS = (("size", "direct"), ("size", "attribution"), ("direct", "attribution"))

QUESTION = Question(
    "importance",
    title="which memories matter",
    paper=Paper(
        figure="B6",
        section="beyond",
        question="How few memories hold the predictions up, and are they those with large activations and values?",
    ),
    numbers=(
        *(Number(f"{name}_top", "share", f"sum of {name} held by the top 1 %") for name in MEASURES),
        *(Number(f"{name}_half", "share", f"memories that hold half of {name}") for name in MEASURES),
        *(Number(f"{one}_{other}", "number", f"rank correlation of {one} with {other}") for one, other in PAIRS),
        *(Number(f"{name}_of_all", "share", f"the layer's share of all {name}") for name in EFFECTS),
        *(Number(f"{name}_ever", "share", f"memories ever among the network's 20 by {name}") for name in EFFECTS),
        Number("prefixes", "count", "validation {cases}"),
    ),
    main="attribution_top",
    headline=("direct_top", "attribution_top", "size_top", "size_direct", "size_attribution", "attribution_of_all"),
    layer_page=("attribution_top", "attribution_half", "size_attribution", "attribution_of_all"),
    may_lack=("importance",),
    nothing="the validation text gave no {case} to ask about; mine more text, or name one with --validation",
    interval="over memories (Wilson; of correlations Fisher's z)",
)

Floats = NDArray[np.float64]


def answer(atlas: Atlas) -> pl.DataFrame:
    activity = read_layers(atlas, "activity")
    sizes = activity.select("layer", "memory", magnitude=mean_magnitude(activity))
    values = read_layers(atlas, "values").select("layer", "memory", "value_norm")
    rows = read_layers(atlas, "importance").join(sizes, on=["layer", "memory"]).join(values, on=["layer", "memory"])
    rows = rows.with_columns(size=pl.col("magnitude") * pl.col("value_norm")).sort("layer", "memory")
    builder = AnswerBuilder(QUESTION)
    of_all = {name: rows[name].cast(pl.Float64).to_numpy() for name in EFFECTS}
    for layer, here in by_layer(atlas, rows):
        numbers = {name: here[name].cast(pl.Float64).to_numpy() for name in MEASURES}
        for name, each in numbers.items():
            top = np.zeros(len(each), np.bool_)
            top[np.argsort(-each, kind="stable")[: math.ceil(len(each) / 100)]] = True
            builder.add(layer, f"{name}_top", part_of_sum(each, top))
            builder.add(layer, f"{name}_half", share_for_half(each))
        for one, other in PAIRS:
            builder.add(layer, f"{one}_{other}", rank_correlation(numbers[one], numbers[other]))
        for name, each in of_all.items():
            builder.add(layer, f"{name}_ever", share(int((here[f"{name}_among_20"] > 0).sum()), here.height))
            if layer is not None:
                builder.add(layer, f"{name}_of_all", part_of_sum(each, (rows["layer"] == layer).to_numpy()))
    asked = int(rows["prefixes"][0]) if rows.height else 0
    builder.add(None, "prefixes", Estimate(float(asked), asked) if asked else NOTHING)
    return builder.frame()


def part_of_sum(sizes: Floats, holders: NDArray[np.bool_]) -> Estimate:
    """The part of the sum that some memories hold."""
    if not sizes.sum() > 0:
        return NOTHING
    scaled = sizes / sizes.mean()
    return replace(clustered_share(scaled * holders, scaled), count=len(sizes))


def share_for_half(sizes: Floats) -> Estimate:
    """The share of the memories, largest first, that hold half of the sum."""
    if not sizes.sum() > 0:
        return NOTHING
    sums = np.cumsum(-np.sort(-sizes))
    return share(int(np.searchsorted(sums, sums[-1] / 2)) + 1, len(sizes))


def rank_correlation(one: Floats, other: Floats) -> Estimate:
    """Spearman's, with the interval of Bonett and Wright (2000)."""
    count = len(one)
    rho = pl.select(pl.corr(pl.Series(one), pl.Series(other), method="spearman")).item() if count > 1 else None
    if rho is None or not math.isfinite(rho):
        return Estimate(None, count)
    if count < 4 or abs(rho) >= 1:
        return Estimate(rho, count)
    margin = Z * math.sqrt((1 + rho**2 / 2) / (count - 3))
    return Estimate(rho, count, math.tanh(math.atanh(rho) - margin), math.tanh(math.atanh(rho) + margin))
