"""Figure 7: how many memories fire at once, layer by layer.

Counts of coefficients above zero, and the effective number of memories, which also weighs how much each contributes:
(sum c)^2 / sum c^2 with c = |m| norm(v). Correlated over layers with the curves of shallow and semantic patterns.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.intervals import NOTHING, Estimate
from mnemoscope.patterns import coverage
from mnemoscope.questions.answers import Answer, Claim, Paper
from mnemoscope.questions.layer_shares import may_be_least
from mnemoscope.questions.sources import model_layers, needed
from mnemoscope.questions.validation import DOCUMENTS, ByLayer, Predictions, add_all, least

QUESTION = "layer_activity"
PAPER = Paper(
    figure="Figure 7",
    section="5.1",
    question="Which share of a layer's memories is active at a prefix?",
    claims=(
        Claim("memories active at a prefix", "10-50 %", "active", "share"),
        Claim("the layer with the fewest active memories, as a part of the depth", "10 of 16", "least_depth", "number"),
    ),
)
HEADLINE = (("active", "share"), ("effective", "number"), ("effective_share", "share"), ("dominated", "share"))
PROJECTIONS: tuple[str, ...] = ()
INTERVAL = DOCUMENTS

FEWEST_LAYERS = 3
"""Layers without which a correlation over layers says nothing."""


def answer(atlas: Atlas) -> pl.DataFrame:
    """Per layer and in all: active, effective, effective_share, dominated; correlations over layers with the patterns.

    Own column: `at_layer`, where the fewest memories are active. Raises AtlasUnfinished if predictions, prefixes,
    triggers or patterns are missing.
    """
    patterns = needed(atlas, "patterns")
    rows = Predictions(atlas)
    memories = np.array([atlas.memories(layer) for layer in atlas.layers])[rows.place]
    found = Answer({"at_layer": pl.Int16})
    active = rows.share(rows["active"] / memories)
    add_all(found, "active", active)
    add_all(found, "effective", rows.share(rows["effective"]))
    add_all(found, "effective_share", rows.share(rows["effective"].astype(np.float64) / memories))
    add_all(found, "dominated", rows.share(rows["top_share"] > 0.5))
    layer, fewest = least(active)
    found.add(None, "active_least_layer", fewest, at_layer=layer)
    depth = _depth(layer, fewest, may_be_least(rows.columns(rows["active"] / memories)), atlas)
    found.add(None, "least_depth", depth, at_layer=layer)
    found.add(None, "documents", rows.documents())
    shares = {
        layer: coverage.shares(coverage.counts(coverage.of_layer(atlas, layer, patterns))) for layer in atlas.layers
    }
    for kind in ("semantic", "shallow"):
        found.add(None, f"correlation_{kind}", _correlation(active, {at: own[kind] for at, own in shares.items()}))
    return found.frame()


def _depth(layer: int | None, fewest: Estimate, candidates: list[int], atlas: Atlas) -> Estimate:
    """The layer's place as a part of the depth; the interval holds all layers that may be the one."""
    if layer is None:
        return NOTHING
    depth = model_layers(atlas)
    if fewest.low is None:
        return Estimate((layer + 1) / depth, fewest.count)
    return Estimate((layer + 1) / depth, fewest.count, (min(candidates) + 1) / depth, (max(candidates) + 1) / depth)


def _correlation(active: ByLayer, other: Mapping[int, Estimate]) -> Estimate:
    """Pearson's correlation over the layers where both are defined; none for fewer than three, or no variance."""
    pairs = [(active[layer].value, estimate.value) for layer, estimate in other.items()]
    both = np.array([(a, b) for a, b in pairs if a is not None and b is not None], np.float64).reshape(-1, 2)
    away = both - both.mean(0) if len(both) else both
    spread = float(np.sqrt(np.square(away).sum(0).prod()))
    if len(both) < FEWEST_LAYERS or spread < 1e-12:
        return Estimate(None, len(both))
    return Estimate(float(np.clip(away.prod(1).sum() / spread, -1, 1)), len(both))
