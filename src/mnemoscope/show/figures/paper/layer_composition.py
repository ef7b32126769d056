"""Figure 8: how often a layer's top token is that of none of its firing memories (section 5.1 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREY, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines
from mnemoscope.show.figures.stated import Stated

ZERO = (
    Series("zero_agreement", BLUE, title="no firing memory agrees"),
    Series("zero_agreement_major", ORANGE, DASHED, "none of those with 90 % of the weight"),
    Series("zero_agreement_output", GREY, DOTTED, "no memory agrees with the block's output (lens)"),
)
AGREEING = (
    Series("agreeing_stop_word", BLUE, title="{asked_token} is a stop word"),
    Series("agreeing_stop_word_top", PURPLE, DASHED, "layer's top token is a stop word"),
    Series("agreeing_short", ORANGE, title="{prefix} under 5 tokens"),
)
STATED = (Stated("at least 68 % in every layer", (0.68, 1.0)),)
OF_THOSE = (Stated("60 % stop words", (0.60,)), Stated("43 % under 5 tokens", (0.43,)))


def figure(answer: Answer) -> Figure:
    zero, agreeing = "the layer's top token is the vote of none of its memories", "where some memory agrees"
    name = "layer_composition"
    return Figure(
        (
            *lines(answer, ZERO, name=name, title=zero, y="share of {cases}", dodge=True, stated=STATED),
            *lines(answer, AGREEING, name=f"{name}_agreeing", title=agreeing, y="share", dodge=True, stated=OF_THOSE),
        ),
        "Share of {cases} where the feed-forward layer ranks first a token that no memory with a coefficient other"
        " than zero ranks first. Gated and GELU layers leave almost no coefficient at zero, so the major memories (the"
        " fewest that hold 90 % of the weight) are asked, too. The paper's released code looks at the block's output.",
        f"No firing memory agrees: {ends(answer, 'zero_agreement')}; no major one:"
        f" {ends(answer, 'zero_agreement_major')}. Where some memory does, the {{asked_token}} is a stop word in"
        f" {over_all(answer, 'agreeing_stop_word')} (of all {{cases}}: {over_all(answer, 'all_stop_word')}), and the"
        f" {{prefix}} has under 5 tokens in {over_all(answer, 'agreeing_short')} ({over_all(answer, 'all_short')}).",
        "Where no memory's top token is the layer's top token, the prediction is made by adding values.",
        "Of a gated layer's thousands of votes one is easily right; in a sparse layer one large memory decides.",
    )
