"""The pages of the questions: the paper's question, and this atlas's answer in figures, tables and sentences.

The same sections as in the report. Only stored answers are shown; a page never computes one.
"""

import threading
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import stored_answers
from mnemoscope.questions.question import Answer, Row
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.page import Page, PageKind, PageNotFound

QuestionName = Annotated[str, Field(max_length=100, description="A question, such as value_agreement")]
Size = Literal["", "small", "narrow"]
"""Of a drawing: for a page, a card, a phone."""
_LIBRARY = threading.Lock()
"""Guards the drawing library, which is not thread-safe."""


def answers_of(edition: Edition) -> dict[str, Answer]:
    return edition.read_current("answers", lambda: stored_answers(edition.atlas))


def layer_numbers(edition: Edition, layer: int) -> list[Data]:
    entries = []
    for answer in answers_of(edition).values():
        rows = [answer.at(name, layer) for name in answer.question.layer_page]
        numbers = [_number(answer, row) for row in rows if row is not None]
        if numbers and not answer.missing:
            entries.append({**answer.heading(), "numbers": numbers})
    return entries


def _number(answer: Answer, row: Row) -> Data:
    numbers = {name: getattr(row, name) for name in ("value", "low", "high", "count")}
    return {"name": row.name, "label": _label(answer, row.name), **numbers, "said": row.text, "between": row.interval}


def _label(answer: Answer, name: str) -> str:
    """The number's label outside its question's page."""
    number = answer.question.number(name)
    return number.alone or number.label


def questions_page(edition: Edition) -> Page:
    """Every question of the paper, and what this atlas answers."""
    entries = []
    for answer in answers_of(edition).values():
        rows = [] if answer.missing else answer.rows(answer.question.main)
        entries.append(
            {
                **answer.heading(),
                "asked": answer.question.paper.question,
                "missing": answer.missing,
                "headline": _label(answer, answer.question.main),
                "ends": [{"layer": row.layer, **_number(answer, row)} for row in (rows[:1] + rows[-1:])[: len(rows)]],
            }
        )
    return Page("questions.html", "Questions", {"questions": entries})


def question_page(edition: Edition, question: QuestionName) -> Page:
    """One question of the paper: its figure, ours beside the paper's, and the numbers."""
    answers = answers_of(edition)
    if question not in answers:
        raise PageNotFound(f"There is no question {question!r}; they are {', '.join(answers)}.")
    data = edition.tables.get(("question", question), lambda: question_view(edition, question))

    def extra() -> Data:
        missing = answers[question].missing
        sizes: tuple[Size, ...] = () if missing else ("", "narrow")
        return {"drawings": {size: _keep_drawing(edition, question, size=size) for size in sizes}}

    return Page("question.html", f"{data['figure']}: {data['about']}", data, extra)


def draw_answer(answers: Mapping[str, Answer], question: str, *, name: str, label: str = "", size: Size = "") -> str:
    """The figure of an answer as an `svg` element; `label` describes it. A small one is its first panel, silent."""
    from mnemoscope.show.figures.page_svg import page_svg
    from mnemoscope.show.figures.panels import narrow_specification, small_specification, specification
    from mnemoscope.show.figures.sections import draw_figure

    answer = answers[question]
    with _LIBRARY:
        figure = draw_figure(question, answers)
        label = label or f"{answer.question.paper.figure}: {figure.reading}"
        other = {"small": small_specification, "narrow": narrow_specification}.get(size)
        drawn = specification(answer, figure, about="") if other is None else other(answer, figure)
        return page_svg(drawn, name=name, label=label, silent=size == "small")


def _keep_drawing(edition: Edition, question: str, *, size: Size) -> str:
    name = f"{size}-{question}" if size else question
    return edition.tables.get(
        ("drawing", name), lambda: draw_answer(answers_of(edition), question, name=name, size=size)
    )


def draw_small(edition: Edition, *questions: str) -> list[dict[str, str]]:
    return [
        {**answer.heading(), "drawing": _keep_drawing(edition, question, size="small")}
        for question in questions
        if not (answer := answers_of(edition)[question]).missing
    ]


def question_view(edition: Edition, question: str) -> Data:
    from mnemoscope.show.figures.sections import section

    answers = answers_of(edition)
    names = list(answers)
    place = names.index(question)
    return {
        **section(question, answers),
        "previous": names[place - 1] if place else None,
        "next": names[place + 1] if place + 1 < len(names) else None,
        "answer": answers[question].table.to_dicts(),
    }


PAGES = (
    PageKind(
        "questions",
        "/questions",
        questions_page,
        label="Questions",
        exported=True,
        about="the paper's figures for this atlas.",
    ),
    PageKind(
        "question",
        "/questions/{question}",
        question_page,
        exported=True,
        instances=lambda *_: [(f"/questions/{question}", {"question": question}) for question in QUESTIONS],
    ),
)
