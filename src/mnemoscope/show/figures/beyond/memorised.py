"""B4: documents that the model continues word for word, and the memories that fire there (beyond the paper)."""

from mnemoscope.foundation.memory_names import MEMORISED_GIVEN, MEMORISED_TOKENS
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, DASHED, GREEN, ORANGE
from mnemoscope.show.figures.panels import lines

TRIGGERS = (Series("base_rate", GREEN, title="triggers"),)
MEMORIES = (
    Series("memories_above", BLUE, title="memories that sit there"),
    Series("control_above", ORANGE, DASHED, title="verdicts dealt anew"),
)


def figure(answer: Answer) -> Figure:
    name = "memorised"
    return Figure(
        (
            *lines(answer, TRIGGERS, name=name, title="triggers in text known by heart", y="share of triggers"),
            *lines(
                answer,
                MEMORIES,
                name=f"{name}_memories",
                title="memories with more of it than their layer",
                y="share of memories",
                dodge=True,
            ),
        ),
        f"A document is known by heart if the model, given its first {MEMORISED_GIVEN} tokens, writes the next"
        f" {MEMORISED_TOKENS - MEMORISED_GIVEN} word for word. Only triggers in the first {MEMORISED_TOKENS} tokens of"
        " the documents asked count. A memory has more of it if so many of the documents its triggers lie in would be"
        " rare by its layer's own share (binomial test; at most 5 % of the findings are false). Control: the verdicts"
        " dealt to other documents.",
        f"Known by heart: {over_all(answer, 'extractable')} of the mined documents,"
        f" {over_all(answer, 'held_out_extractable')} of the held-out ones. Of the triggers in them"
        f" {ends(answer, 'base_rate')} lie in such text; {over_all(answer, 'memories_above')} of the memories sit on it"
        f" (control {over_all(answer, 'control_above')}).",
        "Memories with more of it than their layer fire where the model recites.",
        "How much it recites depends on how often its training text, if this is part of it, repeats a document.",
    )
