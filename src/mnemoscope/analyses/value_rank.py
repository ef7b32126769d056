"""Figure 5: how high does a value rank what follows its best trigger? The distribution of the target's rank."""

import polars as pl

from mnemoscope.analyses.answers import MEMORIES, Answer, Paper
from mnemoscope.analyses.memories import values
from mnemoscope.atlas import Atlas
from mnemoscope.intervals import order_statistic, share

QUESTION = "value_rank"
PAPER = Paper(
    figure="Figure 5",
    section="4",
    question="How high does a value rank the token that follows the memory's best trigger?",
)
HEADLINE = (
    *((name, "number") for name in ("q05", "q25", "q50", "q75", "q95")),
    *((name, "share") for name in ("within_10", "within_100")),
)
PROJECTIONS = ("values",)
INTERVAL = MEMORIES

QUANTILES = {"q00": 0.0, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "q100": 1.0}
WITHIN = (10, 100)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Per layer and in all: quantiles of the target's rank (0 is the top), and shares of ranks below 10 and 100.

    Own column: `quantile` (0 to 1). Raises AtlasUnfinished if values are missing.
    """
    rows = values(atlas).filter(pl.col("target_rank").is_not_null())
    found = Answer({"quantile": pl.Float64})
    for layer in (*atlas.layers, None):
        ranks = (rows if layer is None else rows.filter(pl.col("layer") == layer))["target_rank"].sort().to_numpy()
        for name, level in QUANTILES.items():
            found.add(layer, name, order_statistic(ranks, level), quantile=level)
        for bound in WITHIN:
            found.add(layer, f"within_{bound}", share(int((ranks < bound).sum()), len(ranks)))
    return found.frame()
