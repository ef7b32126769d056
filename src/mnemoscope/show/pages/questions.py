"""The pages of the questions: what the paper asks, what this atlas answers, in figures, tables and sentences.

The same sections as the report's. Only answers that lie in the atlas are shown; a page never makes one.
"""

import threading
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from mnemoscope.foundation.cache import Cache
from mnemoscope.questions.answers import stored_answers
from mnemoscope.questions.question import Answer, Row
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Page

DRAWINGS = 40
"""Drawings kept of all editions of what was mined."""
_LIBRARY = threading.Lock()
"""Held by whoever draws with the figures' library."""


def answers_of(edition: Edition) -> dict[str, Answer]:
    """The answers by question, in the paper's order."""
    return edition.read_current("answers", lambda: stored_answers(edition.atlas))


def layer_numbers(edition: Edition, layer: int) -> list[dict[str, Any]]:
    """What each question's answer says of one layer; nothing of questions without an answer there."""
    found = []
    for question, answer in answers_of(edition).items():
        rows = [answer.at(name, layer) for name in answer.question.layer_page]
        numbers = [_number(answer, row) for row in rows if row is not None]
        if numbers and not answer.missing:
            figure = answer.question.paper.figure
            found.append({"question": question, "figure": figure, "about": answer.question.title, "numbers": numbers})
    return found


def _number(answer: Answer, row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "label": _label(answer, row.name),
        "value": row.value,
        "low": row.low,
        "high": row.high,
        "count": row.count,
        "said": row.text,
        "between": row.interval,
    }


def _label(answer: Answer, name: str) -> str:
    """What the number is called away from its question's page."""
    number = answer.question.number(name)
    return number.alone or number.label


def questions_page(edition: Edition) -> Page:
    """Every question with its headline over the layers, and why there is no answer where there is none."""
    found = []
    for question, answer in answers_of(edition).items():
        rows = [] if answer.missing else answer.rows(answer.question.main)
        found.append(
            {
                "question": question,
                "figure": answer.question.paper.figure,
                "about": answer.question.title,
                "asked": answer.question.paper.question,
                "missing": answer.missing,
                "headline": _label(answer, answer.question.main),
                "ends": [{"layer": row.layer, **_number(answer, row)} for row in (rows[:1] + rows[-1:])[: len(rows)]],
            }
        )
    return Page("questions.html", "Questions", {"questions": found})


def question_page(edition: Edition, question: str) -> Page:
    """One question: its figure, ours beside the paper's, and the numbers; made and drawn once."""
    data = edition.tables.get(("question", question), lambda: question_view(edition, question))
    answers = answers_of(edition)

    def extra() -> dict[str, Any]:
        if answers[question].missing:
            return {"drawing": ""}
        return {"drawing": _keep_drawing(edition, question, name=question, small=False)}

    return Page("question.html", f"{data['figure']}: {data['about']}", data, extra)


def draw_answer(
    answers: Mapping[str, Answer], question: str, *, name: str, label: str = "", small: bool = False
) -> str:
    """The figure of an answer as an `svg` element, one at a time; `label` says what it shows, if not its reading.

    A `small` one is its first panel as one silent picture.
    """
    from mnemoscope.show.figures.page_svg import page_svg
    from mnemoscope.show.figures.panels import small_specification, specification
    from mnemoscope.show.figures.sections import draw_figure

    answer = answers[question]
    with _LIBRARY:
        figure = draw_figure(question, answers)
        label = label or f"{answer.question.paper.figure}: {figure.reading}"
        drawn = small_specification(answer, figure) if small else specification(answer, figure, about="")
        return page_svg(drawn, name=name, label=label, silent=small)


def _keep_drawing(edition: Edition, question: str, *, name: str, small: bool) -> str:
    """The figure of an answer, drawn once for all editions that answer the same."""
    from mnemoscope.show.figures.sections import drawn_questions

    answers = answers_of(edition)
    drawn = (answers[one] for one in drawn_questions(question))
    key = (name, *((one.interval, one.missing, one.table.write_json()) for one in drawn))
    drawings = edition.mined.get("drawings", lambda: Cache(DRAWINGS))
    return drawings.get(key, partial(draw_answer, answers, question, name=name, small=small))


def draw_small(edition: Edition, *questions: str) -> list[dict[str, str]]:
    """Small figures of these questions, of those that are answered: `question`, `figure`, `about`, `drawing`."""
    found = []
    for question in questions:
        answer = answers_of(edition)[question]
        if not answer.missing:
            asked = answer.question
            drawing = _keep_drawing(edition, question, name=f"small-{question}", small=True)
            found.append(
                {"question": question, "figure": asked.paper.figure, "about": asked.title, "drawing": drawing}
            )
    return found


def question_view(edition: Edition, question: str) -> dict[str, Any]:
    """One question: how its figure is read, what it shows, ours beside the paper's, and the numbers as tables."""
    from mnemoscope.show.figures.sections import section

    answers = answers_of(edition)
    names = list(answers)
    place = names.index(question)
    return {
        **asdict(section(question, answers)),
        "previous": names[place - 1] if place else None,
        "next": names[place + 1] if place + 1 < len(names) else None,
        "answer": answers[question].table.to_dicts(),
    }
