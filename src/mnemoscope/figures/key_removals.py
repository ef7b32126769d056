"""Figure 3: which tokens of a prefix keys need (section 3.2 of the paper)."""

from collections.abc import Mapping

from mnemoscope.figures.chart import BLUE, DASHED, DOTTED, GREY, ORANGE, PURPLE, Figure, Series, present
from mnemoscope.figures.panels import lines
from mnemoscope.figures.readings import over_all
from mnemoscope.formatting import listed
from mnemoscope.questions.answered import Answered

REMOVED = (Series("first", BLUE, DASHED), Series("last", ORANGE), Series("random", GREY, DOTTED))
KINDS = (("shallow", BLUE), ("semantic", ORANGE), ("both", PURPLE), ("none", GREY))


def figure(answers: Mapping[str, Answered]) -> Figure:
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
