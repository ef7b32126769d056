"""Figure 10: the probability of the model's final token in the residual of each layer."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.formatting import format_interval, format_value
from mnemoscope.questions.answer_builder import AnswerBuilder, share_above
from mnemoscope.questions.question import Answer, Claim, Finding, Number, Outcome, Paper
from mnemoscope.questions.sources import STREAMS_WHY, Predictions, contrast, question_of_predictions
from mnemoscope.questions.verdicts import NOTHING_FOUND, above, every, is_above, is_between

LEVELS = (0.25, 0.5, 0.75)


def _rises(answers: Mapping[str, Answer], prefix: str) -> Outcome:
    answer = answers["refinement_confidence"]
    rows = answer.rows(f"{prefix}probability")
    whole, steps = answer.total(f"{prefix}rise"), answer.total(f"{prefix}rising_steps")
    if whole is None or steps is None:
        return NOTHING_FOUND
    ends = f"{format_value(rows[0].value, 'share')} to {format_value(rows[-1].value, 'share')}"
    ours = f"{ends}, up in {round(steps.value * steps.count)} of {steps.count} steps"
    interval = format_interval(whole.low, whole.high, "share")
    if steps.low is not None and steps.high is not None:
        interval += f", {round(steps.low * steps.count)} to {round(steps.high * steps.count)} steps"
    return ours, interval, every([is_above(whole, 0), is_between(steps, least=0.75)])


QUESTION = question_of_predictions(
    "refinement_confidence",
    title="how sure the stream is of it",
    paper=Paper(
        figure="Figure 10",
        section="5.2",
        question="Which probability does the residual of a layer give to the model's final top token?",
        claims=(
            Claim(
                "where a layer already has the final token, the next one is surer of it",
                "yes",
                "rise_where_decided",
                "share",
                "mean change of the probability over these cases: above 0",
                above(0),
            ),
        ),
    ),
    finding=Finding(
        "the residual's confidence in the final token grows",
        "through all layers",
        "higher at the end, and up in at least three quarters of the steps, each step's interval corrected for their"
        " number",
        _rises,
        literal=True,
    ),
    numbers=(
        Number("probability", "share", "probability of the final token"),
        Number("probability_matching", "share", "the same, where the residual already predicts it"),
        *(Number(f"probability_q{round(100 * level)}", "share") for level in LEVELS),
        Number("rise", "share", "rise of the mean probability since the layer before; in all, since the first"),
        Number("rising_steps", "share", "layers where that probability rises"),
        Number("rise_where_decided", "share", "rise to the next layer, where both already predict the final token"),
        Number("literal_probability_bare", "share", "literal: probability of top(o E^T), the paper's final token"),
    ),
    main="probability",
    headline=(
        "literal_probability",
        "literal_probability_bare",
        "probability",
        "probability_matching",
        "probability_q25",
        "probability_q50",
        "probability_q75",
    ),
    layer_page=("literal_probability", "probability"),
    projections=("streams",),
    literal=(
        *("probability", "probability_matching", *(f"probability_q{round(100 * level)}" for level in LEVELS)),
        *("rise", "rising_steps", "rise_where_decided"),
    ),
    why=STREAMS_WHY,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Own column: `quantile`. Raises AtlasUnfinished if predictions or prefixes are missing."""
    rows, builder = Predictions(atlas), AnswerBuilder(QUESTION, {"quantile": pl.Float64})
    if (literal := rows.literal()) is not None:
        _add(builder.literal(), atlas, literal)
        bare = literal.share(literal["literal_residual_bare_probability"])
        builder.add_layers("literal_probability_bare", bare, total=False)
    _add(builder, atlas, rows)
    builder.add(None, "documents", rows.documents())
    return builder.frame()


def _add(builder: AnswerBuilder, atlas: Atlas, rows: Predictions) -> None:
    probability = rows["residual_final_probability"]
    means = rows.share(probability)
    builder.add_layers("probability", means, total=False)
    matching = rows["residual_top"] == rows["final_top"]
    builder.add_layers("probability_matching", rows.share(probability, matching), total=False)
    for layer, estimates in rows.quantiles("residual_final_probability", LEVELS).items():
        for level, estimate in zip(LEVELS, estimates, strict=True):
            builder.add(layer, f"probability_q{round(100 * level)}", estimate, quantile=level)
    steps = [(above, contrast((1, means[above]), (-1, means[below]))) for below, above in pairwise(atlas.layers)]
    for layer, step in steps:
        builder.add(layer, "rise", step)
    builder.add(None, "rise", contrast((1, means[atlas.layers[-1]]), (-1, means[atlas.layers[0]])))
    builder.add(None, "rising_steps", share_above([step for _, step in steps if step.value is not None], 0))
    decided = matching & (rows.after(matching) == 1)
    change = np.where(decided, rows.after(probability) - probability, 0)
    builder.add_layers("rise_where_decided", rows.share(change, decided))
