"""Figure 9: where the residual's top token already is the model's final one (section 5.2 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends
from mnemoscope.show.figures.colours import BLUE
from mnemoscope.show.figures.panels import lines
from mnemoscope.show.figures.stated import Stated

STATED = (
    Stated("a third in the bottom few layers", (1 / 3,), last=5),
    Stated("dotted line: it grows fast from here", at=9 / 16),
)


def figure(answer: Answer) -> Figure:
    match, title = [Series("match", BLUE, title="match")], "the residual's top token is the model's"
    return Figure(
        lines(answer, match, name="refinement_match", title=title, y="share of {cases}", stated=STATED),
        "Share of {cases} where the residual that enters the feed-forward layer, read as a prediction, already ranks"
        " first the token that the whole model ranks first.",
        f"The residual already predicts the model's final token in {ends(answer, 'match')} of cases.",
        "Where the residual already ranks the final token first, later layers have little left to decide.",
        "Deep models spread the work over more layers; streams in another basis seem to decide later than they do.",
    )
