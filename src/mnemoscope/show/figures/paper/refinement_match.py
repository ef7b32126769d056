"""Figure 9: where the residual's top token already is the model's final one (section 5.2 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends
from mnemoscope.show.figures.colours import BLUE
from mnemoscope.show.figures.panels import lines


def figure(answer: Answer) -> Figure:
    match, title = [Series("match", BLUE, title="match")], "the residual's top token is the model's"
    return Figure(
        lines(answer, match, name="refinement_match", title=title, y="share of prefixes"),
        "Share of prefixes where the residual that enters the feed-forward layer, read as a prediction, already ranks"
        " first the token that the whole model ranks first.",
        f"The residual already says the model's final token in {ends(answer, 'match')} of cases.",
    )
