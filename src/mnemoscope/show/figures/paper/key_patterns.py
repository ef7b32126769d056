"""Figure 2: what keys detect, shallow or semantic patterns (section 3.2 of the paper)."""

from mnemoscope.questions.question import Answer, Row
from mnemoscope.show.figures.chart import Figure, Panel, Series, ends, over_all
from mnemoscope.show.figures.colours import BLUE, GREY, ORANGE, PURPLE
from mnemoscope.show.figures.panels import stack_shares
from mnemoscope.show.figures.stated import Stated

STACK = (
    Series("shallow_only", BLUE),
    Series("both", PURPLE),
    Series("semantic_only", ORANGE),
    Series("none", GREY),
)
STATED = (
    Stated("65-80 % under a pattern", (0.65, 0.80)),
    Stated("dotted line: semantic ones overtake", at=9 / 16),
)


def figure(answer: Answer) -> Figure:
    panels = [_patterns(answer, "", "patterns found automatically")]
    judges = [who for who in ("people", "models") if answer.rows(f"{who}_none")]
    panels += [_patterns(answer, f"{who}_", f"patterns named by {who}") for who in judges]
    return Figure(
        tuple(panels),
        "Share of each memory's 25 best triggers (equal {prefixes} once) in a layer: those that share a surface form"
        " (shallow), a topic (semantic), both, or nothing that could be found. The thin bars of a column are,"
        " from left to right, the intervals of shallow alone, of all shallow, and of any pattern, each at its border."
        " Keys with a pattern, and patterns per key, are counted over the memories that have at least one positive"
        " trigger: one that never fires has nothing to share.",
        f"{over_all(answer, 'covered')} of triggers fall under a pattern, of near-duplicates counted once"
        f" {over_all(answer, 'folded_covered')}. Shallow patterns: {ends(answer, 'shallow')}; semantic ones:"
        f" {ends(answer, 'semantic')}.",
        "A key whose triggers share a pattern detects it: a word form, or a topic.",
        "People named the paper's patterns; rules find these, and see a repeated word more surely than a topic.",
    )


def _patterns(answer: Answer, prefix: str, title: str) -> Panel:
    series = [Series(prefix + one.name, one.colour, title=answer.label(one.name)) for one in STACK]
    # In this order of slices the borders are shallow only, any shallow, and covered: each has its own interval.
    edges: list[Row] = [
        row for name in ("shallow_only", "shallow", "covered") for row in answer.rows(prefix + name) if row.value > 0
    ]
    return stack_shares(answer, series, edges, name=f"key_patterns_{prefix}kinds", title=title, stated=STATED)
