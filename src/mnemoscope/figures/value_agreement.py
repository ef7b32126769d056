"""Figure 4: whether values predict what follows (section 4 of the paper)."""

from collections.abc import Mapping

from mnemoscope.figures.chart import BLUE, DASHED, DOTTED, GREEN, GREY, ORANGE, PURPLE, Figure, Series, ends, over_all
from mnemoscope.figures.panels import lines
from mnemoscope.questions.question import Answer

AGREEMENT = (
    Series("agreement", BLUE),
    Series("shuffled_targets", ORANGE, DASHED),
    Series("most_frequent_token", GREY, DASHED),
    Series("chance", PURPLE, DOTTED),
)


def figure(answers: Mapping[str, Answer]) -> Figure:
    """Figure 4: how often a value's top token is what follows its memory's best trigger, with the baselines."""
    answer = answers["value_agreement"]
    title = "top token of the value = target"
    panels = [lines(answer, AGREEMENT, name="value_agreement", title=title, y="share of memories", dodge=True)]
    if answer.rows("log_probability_gain"):
        panels.append(
            lines(
                answer,
                [Series("log_probability_gain", GREEN, title="all triggers, against the unigram")],
                name="value_agreement_gain",
                title="beyond the top token: log probability of what follows all triggers",
                y="gain (nats)",
                format="~g",
                zero=True,
            )
        )
    return Figure(
        tuple(panels),
        "Share of memories whose value ranks their target first (the token that follows the best trigger). Baselines:"
        " the same with the targets shuffled among the memories, always guessing the most frequent next token, and 1"
        " over the size of the vocabulary.",
        f"Agreement is {ends(answer, 'agreement')}; over all layers {over_all(answer, 'agreement')}, against"
        f" {over_all(answer, 'shuffled_targets')} with shuffled targets.",
    )
