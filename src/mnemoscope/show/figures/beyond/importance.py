"""B6: how much of a layer's importance few memories hold, and whether size tells which (beyond the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, GREEN, GREY, ORANGE
from mnemoscope.show.figures.panels import lines

TOP = (
    Series("attribution_top", BLUE, title="attribution"),
    Series("direct_top", GREEN, DASHED, title="direct effect"),
    Series("size_top", GREY, DOTTED, title="size"),
)
CORRELATIONS = (
    Series("direct_attribution", ORANGE, title="direct effect with attribution"),
    Series("size_attribution", BLUE, DASHED, title="size with attribution"),
    Series("size_direct", GREEN, DOTTED, title="size with direct effect"),
)
OF_ALL = (
    Series("attribution_of_all", BLUE, title="attribution"),
    Series("direct_of_all", GREEN, DASHED, title="direct effect"),
)


def figure(answer: Answer) -> Figure:
    name, top = "importance", "held by the largest 1 % of the layer's memories"
    return Figure(
        (
            *lines(answer, TOP, name=name, title=top, y="share of the layer's sum", dodge=True),
            *lines(
                answer,
                CORRELATIONS,
                name=f"{name}_correlations",
                title="do large memories matter?",
                y="rank correlation",
                format="~g",
            ),
            *lines(answer, OF_ALL, name=f"{name}_of_all", title="where the importance is", y="share of all layers"),
        ),
        "At every validation {case} the logit of the model's top token less that of its runner-up is explained:"
        " by what each memory adds to it directly, with the norms' scales frozen, and by what the whole network would"
        " lose without it, to first order (attribution). Means of absolute values over the {cases}. Size, for"
        " comparison, is the mean of |m| over the mined text times the norm of the value. If all memories were alike,"
        " 1 % would hold 1 %.",
        f"The largest 1 % hold {ends(answer, 'attribution_top')} of the layer's attribution, and"
        f" {ends(answer, 'size_top')} of its size; half of all attribution lies in"
        f" {over_all(answer, 'attribution_half')} of the memories. Size agrees with attribution by"
        f" {ends(answer, 'size_attribution')} (rank correlation).",
        "If few memories hold most of the sum, few decide; size may tell which, or not.",
        "Attribution is a first-order estimate, worst where single memories are massive, as in large gated models.",
    )
