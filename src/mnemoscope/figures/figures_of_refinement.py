"""Figures 9, 10 and 11: how the prediction is made from layer to layer (section 5.2 of the paper)."""

from collections.abc import Mapping
from dataclasses import replace

from mnemoscope.figures.answered import Answered, Row
from mnemoscope.figures.chart import BLUE, DASHED, GREEN, ORANGE, PURPLE, Figure, Series
from mnemoscope.figures.panels import lines, stacked
from mnemoscope.figures.readings import ends, over_all

EVENTS = (
    Series("residual", BLUE, title="residual: the stream's token stays"),
    Series("agreement", GREEN, title="agreement: both say it"),
    Series("composition", ORANGE, title="composition: a third token"),
    Series("ffn", PURPLE, title="feed-forward: the layer's token"),
)


def refinement_match(answers: Mapping[str, Answered]) -> Figure:
    """Figure 9: how often the residual entering a layer already says what the model ends with."""
    answer = answers["refinement_match"]
    title = "the residual's top token is the model's"
    panel = lines(
        answer, [Series("match", BLUE, title="match")], name="refinement_match", title=title, y="share of prefixes"
    )
    return Figure(
        (panel,),
        "Share of prefixes where the residual that enters the feed-forward layer, read as a prediction, already ranks"
        " first the token that the whole model ranks first.",
        f"The residual already says the model's final token in {ends(answer, 'match')} of cases.",
    )


def refinement_confidence(answers: Mapping[str, Answered]) -> Figure:
    """Figure 10: the probability that the residual gives to the token the model ends with."""
    answer = answers["refinement_confidence"]
    series = [
        Series("probability", BLUE, title="all prefixes: mean, with the middle half"),
        Series("probability_matching", ORANGE, DASHED, "where the residual already ranks it first: mean"),
    ]
    panel = lines(
        answer,
        series,
        name="refinement_confidence",
        title="probability of the model's final token",
        y="probability",
        bands={"probability": ("probability_q25", "probability_q75")},
    )
    return Figure(
        (panel,),
        "Probability that the residual entering the layer gives to the token that the whole model ranks first.",
        f"Mean probability of the final token: {ends(answer, 'probability')}.",
    )


def refinement_events(answers: Mapping[str, Answered]) -> Figure:
    """Figure 11: how a layer's output comes about: from the residual, the layer, both, or neither."""
    answer = answers["refinement_events"]
    title = "what the prediction after the layer comes from"
    panel = stacked(answer, EVENTS, _edges(answer), name="refinement_events", title=title)
    return Figure(
        (panel,),
        "Every prefix in every layer is one case, by the top tokens of residual (r), feed-forward update (u) and layer"
        " output (o): residual o = r, not u; agreement o = r = u; feed-forward o = u, not r; composition: neither.",
        f"A layer leaves the residual's prediction as it is in all but {over_all(answer, 'changed')} of cases; of"
        f" those that change {over_all(answer, 'composition_of_changed')} are compositions.",
    )


def _edges(answer: Answered) -> list[Row]:
    """The intervals of the first border (residual) and of the one below all changes."""
    edges = answer.rows("residual")
    for row in answer.rows("changed"):
        if row.low is not None and row.high is not None:
            edges.append(replace(row, value=1 - row.value, low=1 - row.high, high=1 - row.low))
    return edges
