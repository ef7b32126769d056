"""Figure 4: whether values predict what follows, with baselines (section 4 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREEN, GREY, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines
from mnemoscope.show.figures.stated import Stated

AGREEMENT = (
    Series("agreement", BLUE),
    Series("every_agreement", GREY, DASHED),
    Series("shuffled_targets", ORANGE, DASHED),
    Series("chance", PURPLE, DOTTED),
)
STATED = (
    Stated("about 0 in its layers 1-10", (0.0,), last=10),
    Stated("up to 3.5 % in its layers 11-16", (0.0, 0.035), first=11),
)
GAIN = (Series("log_probability_gain", GREEN, title="all triggers, against the unigram"),)


def figure(answer: Answer) -> Figure:
    name, title = "value_agreement", "top token of the value = target"
    beyond = "beyond the top token: log probability of {what_follows} all triggers"
    return Figure(
        (
            *lines(answer, AGREEMENT, name=name, title=title, y="share of memories", dodge=True, stated=STATED),
            *lines(answer, GAIN, name=f"{name}_gain", title=beyond, y="gain (nats)", format="~g", zero=True),
        ),
        "Share of memories whose value ranks their target first (the token {that_follows} the best trigger). Baselines:"
        " the same with the targets shuffled among the memories, and 1 over the size of the vocabulary.",
        f"Agreement is {ends(answer, 'agreement')}; over all layers {over_all(answer, 'agreement')}, against"
        f" {over_all(answer, 'shuffled_targets')} with shuffled targets. Always guessing the most frequent {{target}}"
        f" (not drawn, since it may be far above) would be right for {over_all(answer, 'most_frequent_token')}.",
        "Agreement above the shuffled targets means that values hold {what_follows} their own triggers.",
        "Layers that write in another basis than the head's, as deep models' lower ones do, agree less.",
    )
