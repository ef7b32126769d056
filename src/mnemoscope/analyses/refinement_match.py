"""Figure 9: when the residual already knows the model's prediction."""

import polars as pl

from mnemoscope.analyses.answers import Answer, Claim, Paper
from mnemoscope.analyses.sources import model_layers
from mnemoscope.analyses.validation import DOCUMENTS, Predictions, add_all
from mnemoscope.atlas import Atlas
from mnemoscope.intervals import NOTHING

QUESTION = "refinement_match"
PAPER = Paper(
    figure="Figure 9",
    section="5.2",
    question="For which share of prefixes does the residual of a layer already have the model's final top token?",
    claims=(Claim("decided in the bottom few layers", "about a third", "match_lower_third", "share"),),
)
HEADLINE = (("match", "share"),)
PROJECTIONS = ("streams",)
INTERVAL = DOCUMENTS


def answer(atlas: Atlas) -> pl.DataFrame:
    """Per layer: `match`. In all: that of layer ceil(L / 3) - 1, the last of the bottom third, and of the last layer.

    Own column: `at_layer`. Raises AtlasUnfinished if predictions or prefixes are missing.
    """
    rows = Predictions(atlas)
    match = rows.share(rows["residual_top"] == rows["final_top"])
    found = Answer({"at_layer": pl.Int16})
    add_all(found, "match", match, total=False)
    layers = model_layers(atlas)
    for name, layer in (("match_lower_third", -(-layers // 3) - 1), ("match_last", layers - 1)):
        found.add(None, name, match.get(layer, NOTHING), at_layer=layer)
    return found.frame()
