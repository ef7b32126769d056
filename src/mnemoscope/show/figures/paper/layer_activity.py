"""Figure 7: how many memories fire at once (section 5.1 of the paper)."""

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, GREEN, ORANGE, PURPLE
from mnemoscope.show.figures.panels import lines
from mnemoscope.show.figures.stated import Stated

BESIDES = ("key_patterns",)
"""Other questions whose answers the figure draws."""
ACTIVE = (
    Series("active", GREEN),
    Series("strong", GREEN, DASHED, "strongly active above zero"),
    Series("strong_negative", PURPLE, DASHED, "strongly active below zero"),
)
STATED = (
    Stated("10-50 % in every layer", (0.1, 0.5)),
    Stated("dotted line: fewest, in its layer 10", at=9.5 / 16),
)
OVERTAKEN = (Stated("dotted line: semantic ones overtake", at=9 / 16),)
SPREAD = (
    Series("effective_share", GREEN),
    Series("dominated", PURPLE, DASHED),
)
KINDS = (
    Series("shallow", BLUE, DASHED, "triggers under a shallow pattern"),
    Series("semantic", ORANGE, DASHED, "triggers under a semantic pattern"),
)


def figure(answer: Answer, patterns: Answer) -> Figure:
    active = "memories with an activation (coefficient) above zero, and those strongly active"
    half = (
        " Here coefficients can be below zero, and about half are above it at any {case}, so that every memory seems"
        " active; the dashed lines count where one is near its own extreme."
        if answer.rows("strong_negative")
        else ""
    )
    spread = "effective number of memories in the layer's output, and {cases} that one dominates"
    kinds = "what the keys detect in the same layers (from Figure 2)"
    return Figure(
        (
            *lines(answer, ACTIVE, name="layer_activity", title=active, y="share (log scale)", log=True, stated=STATED),
            *lines(answer, SPREAD, name="layer_activity_spread", title=spread, y="share"),
            *lines(patterns, KINDS, name="layer_activity_kinds", title=kinds, y="share of triggers", stated=OVERTAKEN),
        ),
        "Share of a layer's memories that fire (coefficient above zero) at {a_case} of the validation text, averaged"
        " over {cases}. Strongly active: the mean over memories of the share of the mined {places} at which the"
        " coefficient is at least an eighth of the memory's extreme." + half + " The effective number is (sum c)^2 /"
        " sum c^2 with c = |coefficient| x norm of the value, here as a share of the layer; {a_case} is dominated where"
        " one memory holds more than half of sum c.",
        f"{over_all(answer, 'active')} of memories fire at {{a_case}}: {ends(answer, 'active')}. The effective number"
        f" of memories behind the layer's output is {ends(answer, 'effective')}.",
        "The fewer memories make up a layer's output, the better it can be read memory by memory.",
        "Only ReLU makes coefficients exactly zero; and training can ask for fewer active memories, or for more.",
    )
