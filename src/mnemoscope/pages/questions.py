"""The data of the questions' pages: what the paper asks, what this atlas answers, in figures, tables and sentences.

The same sections as the report's. Only answers that lie in the atlas are shown; a page never makes one.
"""

from dataclasses import asdict
from typing import Any

from mnemoscope.figures.gathering import at_hand
from mnemoscope.formatting import interval, spoken
from mnemoscope.pages.edition import Edition
from mnemoscope.questions.answered import Answered, Row


def answers_of(edition: Edition) -> dict[str, Answered]:
    """The answers by question, in the paper's order."""
    return edition.tables.get("answers", lambda: at_hand(edition.atlas))


def layer_numbers(edition: Edition, layer: int) -> list[dict[str, Any]]:
    """What each question's answer says of one layer; nothing of questions without an answer there."""
    found = []
    for question, answer in answers_of(edition).items():
        rows = [answer.at(name, layer) for name in answer.asked.layer_page]
        numbers = [_number(answer, row) for row in rows if row is not None]
        if numbers and not answer.missing:
            figure = answer.paper.figure
            found.append({"question": question, "figure": figure, "about": answer.asked.title, "numbers": numbers})
    return found


def _number(answer: Answered, row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "label": _label(answer, row.name),
        "value": row.value,
        "low": row.low,
        "high": row.high,
        "count": row.count,
        "said": spoken(row.value, row.form),
        "between": interval(row.low, row.high, row.form),
    }


def _label(answer: Answered, name: str) -> str:
    """What the number is called away from its question's page."""
    number = answer.asked.number(name)
    return number.alone or number.label


def questions_view(edition: Edition) -> dict[str, Any]:
    """Every question with its headline over the layers, and why there is no answer where there is none."""
    found = []
    for question, answer in answers_of(edition).items():
        rows = [] if answer.missing else answer.rows(answer.asked.main)
        found.append(
            {
                "question": question,
                "figure": answer.paper.figure,
                "about": answer.asked.title,
                "asked": answer.paper.question,
                "missing": answer.missing,
                "headline": _label(answer, answer.asked.main),
                "ends": [{"layer": row.layer, **_number(answer, row)} for row in (rows[:1] + rows[-1:])[: len(rows)]],
            }
        )
    return {"questions": found}


def question_view(edition: Edition, question: str) -> dict[str, Any]:
    """One question: how its figure is read, what it shows, ours beside the paper's, and the numbers as tables."""
    from mnemoscope.figures.comparison import compared
    from mnemoscope.figures.figures import draw_figure
    from mnemoscope.figures.sections import section

    answers = answers_of(edition)
    answer = answers[question]
    figures = {} if answer.missing else {question: draw_figure(question, answers)}
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
