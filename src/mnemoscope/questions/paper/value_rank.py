"""Figure 5: the distribution of the target's rank under the value."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.formatting import format_interval, format_value
from mnemoscope.foundation.intervals import NOTHING, Estimate, order_statistic, share, wilson
from mnemoscope.questions.answer_builder import AnswerBuilder, question_of_values
from mnemoscope.questions.question import Answer, Finding, Number, Outcome, Paper
from mnemoscope.questions.sources import by_layer, values, values_asked
from mnemoscope.questions.verdicts import NOTHING_FOUND, is_above

QUANTILES = {"q00": 0.0, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "q100": 1.0}
WITHIN = (10, 100)


def _higher(answers: Mapping[str, Answer], prefix: str) -> Outcome:
    answer = answers["value_rank"]
    lower, upper = answer.mean(f"{prefix}q50", answer.lower), answer.mean(f"{prefix}q50", answer.upper)
    row = answer.total(f"{prefix}upper_ranks_higher")
    if row is None or lower is None or upper is None:
        return NOTHING_FOUND
    ours = f"higher in {format_value(row.value, 'share')} of pairs; median rank {lower:,.0f} below, {upper:,.0f} above"
    return ours, format_interval(row.low, row.high, "share"), is_above(row, 0.5)


QUESTION = question_of_values(
    "value_rank",
    title="how high values rank it",
    paper=Paper(
        figure="Figure 5",
        section="4",
        question="How high does a value rank the token {that_follows} the memory's best trigger?",
    ),
    finding=Finding(
        "values rank the target higher in the upper layers",
        "yes",
        "of pairs of an upper and a lower layer's memory, the upper one ranks its target higher in more than half",
        _higher,
        literal=True,
    ),
    numbers=(
        *(Number(name, "rank", alone="median rank of the target" if name == "q50" else "") for name in QUANTILES),
        *(Number(f"within_{bound}", "share", f"target among the first {bound}") for bound in WITHIN),
        Number(
            "upper_ranks_higher",
            "share",
            "pairs of an upper and a lower memory in which the upper one ranks its target higher",
        ),
    ),
    main="q50",
    headline=("literal_q50", "q05", "q25", "q50", "every_q50", "q75", "q95", "within_10", "within_100"),
    layer_page=("literal_q50", "q50", "within_100"),
    literal=(*QUANTILES, *(f"within_{bound}" for bound in WITHIN), "upper_ranks_higher"),
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Ranks start at 0, the top. Own column: `quantile` (0 to 1). Raises AtlasUnfinished if values are missing."""
    builder = AnswerBuilder(QUESTION, {"quantile": pl.Float64})
    rows = values(atlas)
    for adding, read in values_asked(atlas, builder, rows):
        _add(adding, atlas, read.filter(pl.col("target_rank").is_not_null()))
    return builder.frame_of_values(atlas)


def _add(builder: AnswerBuilder, atlas: Atlas, rows: pl.DataFrame) -> None:
    for layer, here in by_layer(atlas, rows):
        ranks = here["target_rank"].sort().to_numpy()
        for name, level in QUANTILES.items():
            builder.add(layer, name, order_statistic(ranks, level), quantile=level)
        for bound in WITHIN:
            builder.add(layer, f"within_{bound}", share(int((ranks < bound).sum()), len(ranks)))
    upper = rows["layer"].is_in(list(atlas.upper_layers))
    above, below = (rows.filter(half)["target_rank"] for half in (upper, ~upper))
    builder.add(None, "upper_ranks_higher", ranks_higher(above, below))


def ranks_higher(ranks: ArrayLike, others: ArrayLike) -> Estimate:
    """The share of pairs in which one of `ranks` is smaller than one of `others`; ties count half (Mann and Whitney).
    The interval is Wilson's for the number of cases that has the variance of DeLong (1988); for the smaller set's size
    if all pairs agree.
    """
    one, two = np.sort(np.asarray(ranks, np.float64)), np.sort(np.asarray(others, np.float64))
    if not len(one) or not len(two):
        return NOTHING
    behind = 1 - (np.searchsorted(two, one) + np.searchsorted(two, one, side="right")) / (2 * len(two))
    ahead = (np.searchsorted(one, two) + np.searchsorted(one, two, side="right")) / (2 * len(one))
    value, fewer = float(behind.mean()), float(min(len(one), len(two)))
    if fewer > 1 and 0 < value < 1 and (variance := behind.var(ddof=1) / len(one) + ahead.var(ddof=1) / len(two)) > 0:
        fewer = min(float(len(one) + len(two)), value * (1 - value) / float(variance))
    return Estimate(value, len(one) + len(two), *wilson(value, fewer))
