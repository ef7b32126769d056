"""Figure 10: how the residual's confidence in the model's prediction grows, layer by layer."""

from itertools import pairwise

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.questions.answers import Answer, Paper
from mnemoscope.questions.layer_shares import share_above
from mnemoscope.questions.validation import DOCUMENTS, Predictions, add_all, contrast

QUESTION = "refinement_confidence"
PAPER = Paper(
    figure="Figure 10",
    section="5.2",
    question="Which probability does the residual of a layer give to the model's final top token?",
)
HEADLINE = tuple(
    (name, "share")
    for name in ("probability", "probability_matching", "probability_q25", "probability_q50", "probability_q75")
)
PROJECTIONS = ("streams",)
INTERVAL = DOCUMENTS

LEVELS = (0.25, 0.5, 0.75)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Per layer: mean and quartiles of that probability, and its mean where the residual's top token is the final one.

    And by how much that mean rises: to each layer from the mined one below, in how many of these steps, and in all.
    Own column: `quantile`. Raises AtlasUnfinished if predictions or prefixes are missing.
    """
    rows = Predictions(atlas)
    probability = rows["residual_final_probability"]
    found = Answer({"quantile": pl.Float64})
    add_all(found, "probability", rows.share(probability), total=False)
    matching = rows["residual_top"] == rows["final_top"]
    add_all(found, "probability_matching", rows.share(probability, matching), total=False)
    for layer, estimates in rows.quantiles("residual_final_probability", LEVELS).items():
        for level, estimate in zip(LEVELS, estimates, strict=True):
            found.add(layer, f"probability_q{round(100 * level)}", estimate, quantile=level)
    means = rows.columns(probability)
    steps = [(above, contrast((1, means[above]), (-1, means[below]))) for below, above in pairwise(atlas.layers)]
    for layer, step in steps:
        found.add(layer, "rise", step)
    found.add(None, "rise", contrast((1, means[atlas.layers[-1]]), (-1, means[atlas.layers[0]])))
    found.add(None, "rising_steps", share_above([step for _, step in steps if step.value is not None], 0))
    found.add(None, "documents", rows.documents())
    return found.frame()
