"""Figure 7: how many memories fire at once, by layer, and the correlation with shallow and semantic patterns.

Three counts: coefficients above zero, as in the paper; those of a feature that is strongly active (definitions.md
section 2), since in a gated layer half of all coefficients are above zero; and the effective number (sum c)^2 / sum c^2
with c = |m| norm(v).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import STRONG, strongly_active
from mnemoscope.foundation.intervals import NOTHING, Estimate, mean_share
from mnemoscope.patterns import coverage
from mnemoscope.questions.answer_builder import AnswerBuilder, ByLayer, least_layer
from mnemoscope.questions.question import Answer, Claim, Finding, Number, Outcome, Paper
from mnemoscope.questions.sources import (
    Predictions,
    by_layer,
    may_be_least,
    model_layers,
    question_of_predictions,
    read_layers,
    require_table,
)
from mnemoscope.questions.verdicts import (
    NOTHING_FOUND,
    at_least,
    at_most,
    between,
    correct_intervals,
    each_layer_between,
)


def _dips(answers: Mapping[str, Answer], prefix: str) -> Outcome:
    answer, kinds = answers["layer_activity"], answers["key_patterns"]
    least, rows = answer.total("least_depth"), kinds.rows("shallow_of_one_kind")
    over = next((row.layer for row in rows if row.value < 0.5), None)
    if least is None or not rows:
        return NOTHING_FOUND
    fewest = round(least.value * answer.depth) - 1
    if over is None:
        return f"fewest in layer {fewest}; semantic patterns never overtake", "", None
    ours = f"fewest in layer {fewest}; semantic ahead from layer {over}"
    if least.low is None or least.high is None:
        return ours, "", "undecided"
    places = [round(end * answer.depth) - 1 for end in (least.low, least.high)]
    dips = [layer for layer in answer.layers if places[0] <= layer <= places[1]]
    # From the first layer that may be ahead to the first that surely is. Two sets of layers: twice as many looks.
    sure = correct_intervals(rows, 2 * len(rows))
    maybe = [row.layer for row in sure if row.low is None or row.low < 0.5]
    ahead = next((row.layer for row in sure if row.high is not None and row.high < 0.5), None)
    between = f"fewest in one of {dips[0]}-{dips[-1]}, ahead from one of {maybe[0]}-{'?' if ahead is None else ahead}"
    crossings = [layer for layer in maybe if layer is not None and (ahead is None or layer <= ahead)]
    inner = answer.layers[1:-1]
    near = [dip in inner and abs(dip - crossing) <= 1 for dip in dips for crossing in crossings]
    if ahead is not None and all(near):
        return ours, between, "yes"
    return ours, between, "undecided" if any(near) else "no"


QUESTION = question_of_predictions(
    "layer_activity",
    title="how many memories fire",
    paper=Paper(
        figure="Figure 7",
        section="5.1",
        question="Which share of a layer's memories is active at {a_case}?",
        claims=(
            Claim(
                "memories active at {a_case}",
                "10-50 %",
                "active",
                "share",
                "10 to 50 % in every layer, each interval corrected for their number",
                each_layer_between("active", 0.1, 0.5),
                ungated=True,
            ),
            Claim(
                "memories active at {a_case} and layer, as a number",
                "hundreds",
                "active_count",
                "number",
                "at least 100",
                at_least(100),
                ungated=True,
            ),
            Claim(
                "one memory dominates a layer's output (holds more than half of it)",
                "the exception",
                "dominated",
                "share",
                "in less than half of all {cases} and layers",
                at_most(0.5),
            ),
            Claim(
                "the layer with the fewest active memories, as a part of the depth",
                "10 of 16",
                "least_depth",
                "number",
                "every layer that may have the fewest, the same {cases} compared and corrected for all layers, is"
                " within an eighth of the depth of that",
                between(10 / 16 - 1 / 8, 10 / 16 + 1 / 8),
            ),
        ),
    ),
    finding=Finding(
        "activity dips where semantic patterns overtake shallow ones",
        "at layer 10 of 16",
        "every layer that may have the fewest is within one of every layer where semantic patterns may overtake, and at"
        " no end; corrected for all layers",
        _dips,
    ),
    numbers=(
        Number("active", "share", "memories that fire"),
        Number("active_count", "number", "memories that fire, as a number"),
        Number("strong", "share", "{places} at which a memory is strongly active, mean over memories"),
        Number("strong_negative", "share", "strongly active below zero, mean over memories"),
        Number("strong_unknown", "count", "features whose extreme no edge of the histogram fits"),
        Number("effective", "number", "effective number of memories"),
        Number("effective_share", "share", "effective number, share of the layer"),
        Number("dominated", "share", "{cases} where one memory holds more than half"),
        Number("active_least_layer", "share", "memories that fire, in the layer where fewest do"),
        Number("least_depth", "number", "that layer, as a part of the depth"),
        Number("correlation_semantic", "number", "correlation with semantic patterns over layers"),
        Number("correlation_shallow", "number", "correlation with shallow patterns over layers"),
    ),
    main="active",
    headline=("active", "strong", "strong_negative", "effective", "effective_share", "dominated"),
    layer_page=("active", "strong", "strong_negative", "effective"),
    needs_patterns=True,
    keys=True,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Own column: `at_layer`, where the fewest memories are active. Raises AtlasUnfinished if predictions, prefixes,
    triggers or patterns are missing.
    """
    patterns = require_table(atlas, "patterns")
    rows = Predictions(atlas)
    builder = AnswerBuilder(QUESTION, {"at_layer": pl.Int16})
    active = rows.share(rows["active"] / rows.memories)
    builder.add_layers("active", active)
    builder.add_layers("active_count", rows.share(rows["active"]))
    _add_strong(builder, atlas)
    builder.add_layers("effective", rows.share(rows["effective"]))
    builder.add_layers("effective_share", rows.share(rows["effective"].astype(np.float64) / rows.memories))
    builder.add_layers("dominated", rows.share(rows["top_share"] > 0.5))
    layer, fewest = least_layer(active)
    builder.add(None, "active_least_layer", fewest, at_layer=layer)
    depth, layers = NOTHING, model_layers(atlas)
    if layer is not None:
        depth = Estimate((layer + 1) / layers, fewest.count)
        if fewest.low is not None:  # the interval spans the layers that may have the fewest
            least = may_be_least(active)
            depth = replace(depth, low=(min(least) + 1) / layers, high=(max(least) + 1) / layers)
    builder.add(None, "least_depth", depth, at_layer=layer)
    builder.add(None, "documents", rows.documents())
    shares = {layer: coverage.layer_shares(atlas, layer, patterns) for layer in atlas.layers}
    for kind in ("semantic", "shallow"):
        builder.add(
            None, f"correlation_{kind}", _correlation(active, {at: by_kind[kind] for at, by_kind in shares.items()})
        )
    return builder.frame()


def _add_strong(builder: AnswerBuilder, atlas: Atlas) -> None:
    """By layer and over all memories; nothing for a sign that no memory of a layer has."""
    activity = read_layers(atlas, "activity")
    strong = strongly_active(activity).with_columns(
        layer=activity["layer"], strong_fires=activity["max"] > 0, strong_negative_fires=activity["min"] < 0
    )
    for at, rows in by_layer(atlas, strong):
        for name in STRONG:
            if rows[f"{name}_fires"].any():
                builder.add(at, name, mean_share(rows[name].drop_nulls()))
        features = sum(int(rows[f"{name}_fires"].sum()) for name in STRONG)
        unknown = sum(int((rows[f"{name}_fires"] & rows[name].is_null()).sum()) for name in STRONG)
        builder.add(at, "strong_unknown", Estimate(unknown, features))


def _correlation(active: ByLayer, other: Mapping[int, Estimate]) -> Estimate:
    """Pearson's correlation over layers; undefined for fewer than three, or without variance."""
    pairs = [(active[layer].value, estimate.value) for layer, estimate in other.items()]
    both = np.array([(a, b) for a, b in pairs if a is not None and b is not None], np.float64).reshape(-1, 2)
    away = both - both.mean(0) if len(both) else both
    spread = float(np.sqrt(np.square(away).sum(0).prod()))
    if len(both) < 3 or spread < 1e-12:
        return Estimate(None, len(both))
    return Estimate(float(np.clip(away.prod(1).sum() / spread, -1, 1)), len(both))
