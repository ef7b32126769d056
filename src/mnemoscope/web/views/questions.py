"""The data of the questions' pages: what the paper asks, what this atlas answers, in figures, tables and sentences.

The same sections as the report's. Only answers that lie in the atlas are shown; a page never makes one.
"""

from dataclasses import asdict
from typing import Any

from mnemoscope.figures.answered import Answered
from mnemoscope.figures.gathering import HEADLINES, at_hand
from mnemoscope.figures.words import form_of, interval, label, spoken
from mnemoscope.web.site import Site

OF_A_LAYER = {
    "key_patterns": ("covered", "shallow", "semantic"),
    "key_removals": ("last_median", "first_median"),
    "value_agreement": ("agreement", "shuffled_targets"),
    "value_rank": ("q50", "within_100"),
    "value_confidence": ("max_probability",),
    "layer_activity": ("active", "effective"),
    "layer_composition": ("zero_agreement",),
    "refinement_match": ("match",),
    "refinement_confidence": ("probability",),
    "refinement_events": ("changed", "composition_of_changed"),
}
"""The numbers that a layer's page shows of each question."""


def answers_of(site: Site) -> dict[str, Answered]:
    """The answers by question, in the paper's order."""
    return site.tables.get("answers", lambda: at_hand(site.atlas))


def layer_numbers(site: Site, layer: int) -> list[dict[str, Any]]:
    """What each question's answer says of one layer; nothing of questions without an answer there."""
    from mnemoscope.figures.sections import TITLES

    found = []
    for question, answer in answers_of(site).items():
        numbers = [_number(row) for name in OF_A_LAYER[question] if (row := answer.at(name, layer)) is not None]
        if numbers and not answer.missing:
            figure = answer.paper.figure
            found.append({"question": question, "figure": figure, "about": TITLES[question], "numbers": numbers})
    return found


def _number(row: Any) -> dict[str, Any]:
    form = form_of(row.name)
    return {
        "name": row.name,
        "label": "median rank of the target" if row.name == "q50" else label(row.name),
        "value": row.value,
        "low": row.low,
        "high": row.high,
        "count": row.count,
        "said": spoken(row.value, form),
        "between": interval(row.low, row.high, form),
    }


def questions_view(site: Site) -> dict[str, Any]:
    """Every question with its headline over the layers, and why there is no answer where there is none."""
    from mnemoscope.figures.sections import TITLES

    found = []
    for question, answer in answers_of(site).items():
        rows = [] if answer.missing else answer.rows(HEADLINES[question])
        found.append(
            {
                "question": question,
                "figure": answer.paper.figure,
                "about": TITLES[question],
                "asked": answer.paper.question,
                "missing": answer.missing,
                "headline": "median rank of the target" if question == "value_rank" else label(HEADLINES[question]),
                "ends": [{"layer": row.layer, **_number(row)} for row in (rows[:1] + rows[-1:])[: len(rows)]],
            }
        )
    return {"questions": found}


def question_view(site: Site, question: str) -> dict[str, Any]:
    """One question: how its figure is read, what it shows, ours beside the paper's, and the numbers as tables."""
    from mnemoscope.figures.comparison import compared
    from mnemoscope.figures.figures import FIGURES
    from mnemoscope.figures.sections import section

    answers = answers_of(site)
    answer = answers[question]
    figures = {} if answer.missing else {question: FIGURES[question](answers)}
    shown = asdict(section(answer, figures, compared(answers)))
    names = list(answers)
    place = names.index(question)
    return {
        **{key: part for key, part in shown.items() if key != "title"},
        "about": shown["title"],
        "previous": names[place - 1] if place else None,
        "next": names[place + 1] if place + 1 < len(names) else None,
        "answer": answer.table.to_dicts(),
    }
