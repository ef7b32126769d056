"""Figure 4: whether values predict what follows, with baselines (section 4 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREEN, GREY, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines

AGREEMENT = (
    Series("agreement", BLUE),
    Series("shuffled_targets", ORANGE, DASHED),
    Series("most_frequent_token", GREY, DASHED),
    Series("chance", PURPLE, DOTTED),
)
GAIN = (Series("log_probability_gain", GREEN, title="all triggers, against the unigram"),)


def figure(answer: Answer) -> Figure:
    name, title = "value_agreement", "top token of the value = target"
    beyond = "beyond the top token: log probability of what follows all triggers"
    return Figure(
        (
            *lines(answer, AGREEMENT, name=name, title=title, y="share of memories", dodge=True),
            *lines(answer, GAIN, name=f"{name}_gain", title=beyond, y="gain (nats)", format="~g", zero=True),
        ),
        "Share of memories whose value ranks their target first (the token that follows the best trigger). Baselines:"
        " the same with the targets shuffled among the memories, always guessing the most frequent next token, and 1"
        " over the size of the vocabulary.",
        f"Agreement is {ends(answer, 'agreement')}; over all layers {over_all(answer, 'agreement')}, against"
        f" {over_all(answer, 'shuffled_targets')} with shuffled targets.",
    )
