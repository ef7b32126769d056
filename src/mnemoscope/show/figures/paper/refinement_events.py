"""Figure 11: whether a layer's prediction comes from the residual, the layer, both or neither (section 5.2 of the
paper).
"""

from mnemoscope.questions.answer_builder import complement
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, over_all
from mnemoscope.show.figures.colours import BLUE, GREEN, ORANGE, PURPLE
from mnemoscope.show.figures.panels import stack_shares

EVENTS = (
    Series("residual", BLUE, title="residual: the stream's token stays"),
    Series("agreement", GREEN, title="agreement: both predict it"),
    Series("composition", ORANGE, title="composition: a third token"),
    Series("ffn", PURPLE, title="feed-forward: the layer's token"),
)


def figure(answer: Answer) -> Figure:
    # The intervals of the first border (residual) and of the one below all changes.
    edges = answer.rows("residual") + [complement(row) for row in answer.rows("changed")]
    title = "what the prediction after the layer comes from"
    panel = stack_shares(answer, EVENTS, edges, name="refinement_events", title=title)
    return Figure(
        (panel,),
        "{Every_case} in every layer is one case, by the top tokens of residual (r), feed-forward update (u) and layer"
        " output (o): residual o = r, not u; agreement o = r = u; feed-forward o = u, not r; composition: neither."
        " Of the thin bars of a column the left is the interval of residual, the right that of residual and agreement"
        " together: where the prediction stays.",
        f"A layer leaves the residual's prediction as it is in all but {over_all(answer, 'changed')} of cases; of"
        f" those that change {over_all(answer, 'composition_of_changed')} are compositions.",
        "A composition is a compromise: a token that neither stream nor layer had first.",
        "A deep model spreads one change over many layers, each of which changes less; a shallow one over few.",
    )
