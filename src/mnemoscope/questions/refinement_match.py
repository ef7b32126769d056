"""Figure 9: when the residual already knows the model's prediction."""

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.intervals import NOTHING, Estimate
from mnemoscope.questions.answers import Answer, Claim, Paper
from mnemoscope.questions.sources import model_layers, upper_layers
from mnemoscope.questions.validation import DOCUMENTS, Column, Predictions, add_all, contrast

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

    And how much more it grows, a layer, above the first upper layer than below.

    Own column: `at_layer`. Raises AtlasUnfinished if predictions or prefixes are missing.
    """
    rows = Predictions(atlas)
    hits = rows["residual_top"] == rows["final_top"]
    match = rows.share(hits)
    found = Answer({"at_layer": pl.Int16})
    add_all(found, "match", match, total=False)
    layers = model_layers(atlas)
    for name, layer in (("match_lower_third", -(-layers // 3) - 1), ("match_last", layers - 1)):
        found.add(None, name, match.get(layer, NOTHING), at_layer=layer)
    found.add(None, "match_growth_upper_minus_lower", _growth(rows.columns(hits), upper_layers(atlas)))
    found.add(None, "documents", rows.documents())
    return found.frame()


def _growth(match: dict[int | None, Column], upper: tuple[int, ...]) -> Estimate:
    """How much faster matches grow, a layer, from the first upper layer to the last one than up to the first upper one.

    Nothing where there is no lower layer, or only one upper one.
    """
    known = [layer for layer in match if layer is not None]
    if len(upper) < 2 or known[0] >= upper[0]:
        return NOTHING
    first, turn, last = known[0], upper[0], known[-1]
    above, below = 1 / (last - turn), 1 / (turn - first)
    return contrast((above, match[last]), (-above - below, match[turn]), (below, match[first]))
