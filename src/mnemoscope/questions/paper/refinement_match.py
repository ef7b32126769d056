"""Figure 9: the share of prefixes where the residual's top token is the model's final one, by layer."""

from collections.abc import Mapping

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.read import ELEVENTH, TENTH, first_layer_from
from mnemoscope.foundation.intervals import NOTHING
from mnemoscope.questions.answer_builder import AnswerBuilder
from mnemoscope.questions.question import Answer, Claim, Finding, Number, Outcome, Paper
from mnemoscope.questions.sources import STREAMS_WHY, Predictions, contrast, model_layers, question_of_predictions
from mnemoscope.questions.verdicts import NOTHING_FOUND, between, is_above


def _grows_above(answers: Mapping[str, Answer], prefix: str) -> Outcome:
    answer = answers["refinement_match"]
    more = answer.total(f"{prefix}match_growth_upper_minus_lower")
    rows = answer.rows(f"{prefix}match")
    upper = [layer for layer in answer.layers if layer >= first_layer_from(TENTH if prefix else ELEVENTH, answer.depth)]
    if more is None or not upper:
        return NOTHING_FOUND
    turn, first, last = answer.at(f"{prefix}match", upper[0]), rows[0], rows[-1]
    if turn is None or turn.layer is None or first.layer is None or last.layer is None:
        return NOTHING_FOUND
    below = 100 * (turn.value - first.value) / (turn.layer - first.layer)
    above = 100 * (last.value - turn.value) / (last.layer - turn.layer)
    ours = f"{below:+.1f} points a layer up to layer {turn.layer}, {above:+.1f} from there"
    interval = "" if more.low is None or more.high is None else f"[{100 * more.low:+.1f}, {100 * more.high:+.1f}]"
    return ours, interval and f"difference {interval}", is_above(more, 0)


QUESTION = question_of_predictions(
    "refinement_match",
    title="when the prediction is there",
    paper=Paper(
        figure="Figure 9",
        section="5.2",
        question="For which share of {cases} does the residual of a layer already have the model's final top token?",
        claims=(
            Claim(
                "decided in the bottom few layers",
                "about a third",
                "match_lower_third",
                "share",
                "between 25 % and 42 %",
                between(0.25, 0.42),
            ),
        ),
    ),
    finding=Finding(
        "matches grow fast in the upper layers",
        "from layer 10",
        "growth a layer minus that in the layers below, of the same {cases}: above 0",
        _grows_above,
        literal=True,
    ),
    numbers=(
        Number("match", "share", "residual already predicts the final token"),
        Number("match_lower_third", "share", "match at the end of the lower third"),
        Number("match_last", "share", "match in the last layer"),
        Number(
            "match_growth_upper_minus_lower",
            "share",
            "growth of matches a layer, from the first upper layer on minus up to it",
        ),
        Number("literal_match_bare", "share", "literal: match with top(o E^T), the paper's final token"),
    ),
    main="match",
    headline=("literal_match", "literal_match_bare", "match"),
    layer_page=("literal_match", "match"),
    projections=("streams",),
    literal=("match", "match_lower_third", "match_last", "match_growth_upper_minus_lower"),
    why=STREAMS_WHY,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """`match_lower_third` is of layer ceil(L / 3) - 1. Raises AtlasUnfinished without predictions or prefixes."""
    rows, builder = Predictions(atlas), AnswerBuilder(QUESTION, {"at_layer": pl.Int16})
    if (literal := rows.literal()) is not None:
        _add(builder.literal(), atlas, literal, TENTH)
        bare = literal.share(literal["residual_top"] == literal["literal_final_top"])
        builder.add_layers("literal_match_bare", bare, total=False)
    _add(builder, atlas, rows, ELEVENTH)
    builder.add(None, "documents", rows.documents())
    return builder.frame()


def _add(builder: AnswerBuilder, atlas: Atlas, rows: Predictions, number: int) -> None:
    """The paper has matches grow fast from the paper's layer `number` on."""
    match, layers = rows.share(rows["residual_top"] == rows["final_top"]), model_layers(atlas)
    builder.add_layers("match", match, total=False)
    for name, layer in (("match_lower_third", -(-layers // 3) - 1), ("match_last", layers - 1)):
        builder.add(None, name, match.get(layer, NOTHING), at_layer=layer)
    growth, upper = NOTHING, [layer for layer in atlas.layers if layer >= first_layer_from(number, layers)]
    first, last = atlas.layers[0], atlas.layers[-1]
    if len(upper) > 1 and first < (turn := upper[0]):
        above, below = 1 / (last - turn), 1 / (turn - first)
        growth = contrast((above, match[last]), (-above - below, match[turn]), (below, match[first]))
    builder.add(None, "match_growth_upper_minus_lower", growth)
