"""Figures 2 and 3: what keys detect, and which tokens of a prefix they need (section 3 of the paper)."""

from collections.abc import Mapping

from mnemoscope.figures.answered import Answered, Row
from mnemoscope.figures.chart import BLUE, DASHED, DOTTED, GREY, ORANGE, PURPLE, Figure, Panel, Series, present
from mnemoscope.figures.panels import lines, stacked
from mnemoscope.figures.readings import ends, over_all
from mnemoscope.figures.words import listed

STACK = (
    Series("shallow_only", BLUE),
    Series("both", PURPLE),
    Series("semantic_only", ORANGE),
    Series("none", GREY),
)
REMOVED = (Series("first", BLUE, DASHED), Series("last", ORANGE), Series("random", GREY, DOTTED))
KINDS = (("shallow", BLUE), ("semantic", ORANGE), ("both", PURPLE), ("none", GREY))


def key_patterns(answers: Mapping[str, Answered]) -> Figure:
    """Figure 2: shares of the top triggers under shallow, semantic, both or no patterns, stacked by layer."""
    answer = answers["key_patterns"]
    panels = [_patterns(answer, "", "patterns found automatically")]
    if answer.rows("people_none"):
        panels.append(_patterns(answer, "people_", "patterns named by people"))
    return Figure(
        tuple(panels),
        "Share of each memory's 25 best triggers (equal prefixes once) in a layer: those that share a surface form"
        " (shallow), a topic (semantic), both, or nothing that could be found. Keys with a pattern, and patterns per"
        " key, are counted over the memories that have at least one positive trigger: one that never fires has nothing"
        " to share.",
        f"{over_all(answer, 'covered')} of triggers fall under a pattern. Shallow patterns: {ends(answer, 'shallow')};"
        f" semantic ones: {ends(answer, 'semantic')}.",
    )


def _patterns(answer: Answered, prefix: str, title: str) -> Panel:
    series = [Series(prefix + one.name, one.colour, title=one.label) for one in STACK]
    # In this order of slices the borders are shallow only, shallow at all, and covered: each has its own interval.
    edges: list[Row] = [
        row for name in ("shallow_only", "shallow", "covered") for row in answer.rows(prefix + name) if row.value > 0
    ]
    return stacked(answer, series, edges, name=f"key_patterns_{prefix}kinds", title=title)


def key_removals(answers: Mapping[str, Answered]) -> Figure:
    """Figure 3: the change of the coefficient when the first, the last or a random token is taken away."""
    answer = answers["key_removals"]
    bands = {f"{one.name}_median": (f"{one.name}_q25", f"{one.name}_q75") for one in REMOVED}
    medians = [Series(f"{one.name}_median", one.colour, one.dash, f"{one.name} token") for one in REMOVED]
    panels = [
        lines(
            answer,
            medians,
            name="key_removals_tokens",
            title="one token of the prefix removed: median and middle half",
            y="change of the coefficient",
            bands=bands,
            zero=True,
        )
    ]
    kinds = [Series(f"last_median_{kind}", colour, title=_kind(kind)) for kind, colour in KINDS]
    if present(answer, kinds):
        drawn = lines(
            answer,
            kinds,
            name="key_removals_kinds",
            title="the last token removed, by the pattern that the trigger falls under (median)",
            y="change of the coefficient",
            zero=True,
            dodge=True,
        )
        panels.append(drawn)
    found = listed(
        [
            f"{over_all(answer, f'{name}_median')} without {article} {name} token"
            for article, name in (("the", "first"), ("the", "last"), ("a", "random"))
        ]
    )
    return Figure(
        tuple(panels),
        "Relative change (m' - m) / m of a trigger's coefficient when one token of its prefix is taken away: median"
        " over triggers, with the middle half as a band. At -100 % the memory no longer fires. A line stops where no"
        " trigger in the sample falls under that kind of pattern.",
        f"Median change of the coefficient over all layers: {found}.",
    )


def _kind(kind: str) -> str:
    return {"both": "shallow and semantic", "none": "no pattern"}.get(kind, kind)
