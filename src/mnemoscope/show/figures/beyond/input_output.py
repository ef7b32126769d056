"""B7: whether memories add to what they read or take it away (beyond the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends
from mnemoscope.show.figures.colours import BLUE, DASHED, DOTTED, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines

SHARES = (
    Series("adds", BLUE, title="add to what they read"),
    Series("removes", ORANGE, title="remove what they read"),
    Series("chance", PURPLE, DOTTED, title="by chance, each"),
)
SIGNS = (
    Series("adds_above_zero", BLUE, title="of memories that add"),
    Series("removes_above_zero", ORANGE, DASHED, title="of those that remove"),
)


def figure(answer: Answer) -> Figure:
    name, title = "input_output", "what memories do to what they read"
    signs = "is the activation (coefficient) above zero where they are strongly active?"
    return Figure(
        (
            *lines(answer, SHARES, name=name, title=title, y="share of memories", dodge=True),
            *lines(answer, SIGNS, name=f"{name}_signs", title=signs, y="share of positions", dodge=True),
        ),
        "The cosine of each memory's key (of a gated layer the up row) with its own value, both as directions of the"
        " stream. A memory adds to what it reads above the 99.75th percentile of 10,000 pairs of a key and another"
        " memory's value of the layer, and removes it below the 0.25th: 0.25 % a side by chance. From weights alone.",
        f"Memories that add to what they read are {ends(answer, 'adds')}; those that remove it are"
        f" {ends(answer, 'removes')}.",
        "A memory that adds makes what it found louder for the layers above; one that removes has dealt with it.",
        "Where its activation is negative (GELU, SiLU), a memory does the reverse of what its weights suggest.",
    )
