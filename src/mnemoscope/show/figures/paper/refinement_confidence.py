"""Figure 10: the probability of the model's final token in the residual (section 5.2 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends
from mnemoscope.show.figures.colours import BLUE, DASHED, ORANGE
from mnemoscope.show.figures.panels import lines


def figure(answer: Answer) -> Figure:
    series = [
        Series("probability", BLUE, title="all {cases}: mean, with the middle half"),
        Series("probability_matching", ORANGE, DASHED, "where the residual already ranks it first: mean"),
    ]
    panels = lines(
        answer,
        series,
        name="refinement_confidence",
        title="probability of the model's final token",
        y="probability",
        bands={"probability": ("probability_q25", "probability_q75")},
    )
    return Figure(
        panels,
        "Probability that the residual entering the layer gives to the token that the whole model ranks first.",
        f"Mean probability of the final token: {ends(answer, 'probability')}.",
        "A rise without new matches means that layers make a prediction surer, not that they change it.",
        "A small model is less sure at the end, too: compare the course of the line with the paper's.",
    )
