"""The pages of the paper's questions: a figure, how to read it, ours beside the paper's, and the numbers behind it."""

from typing import Annotated

from fastapi import APIRouter, Path
from markupsafe import Markup
from starlette.exceptions import HTTPException

from mnemoscope.pages.drawings import question_drawing
from mnemoscope.pages.questions import answers_of, question_view, questions_view
from mnemoscope.web.pages import Page, both
from mnemoscope.web.site import Site

NAV: tuple[tuple[str, str], ...] = (("Questions", "/questions"),)

Question = Annotated[str, Path(max_length=100, description="A question, such as value_agreement")]


def router(site: Site) -> APIRouter:
    """The routes of the questions."""
    routes = APIRouter()

    @both(routes, site, "/questions", template="questions.html")
    def questions() -> Page:
        """Every question of the paper, and what this atlas answers."""
        return Page("Questions", questions_view(site.edition()))

    @both(routes, site, "/questions/{question}", template="question.html")
    def question(question: Question) -> Page:
        """One question of the paper: its figure, ours beside the paper's, and the numbers."""
        answers = answers_of(site.edition())
        if question not in answers:
            raise HTTPException(404, f"There is no question {question!r}; they are {', '.join(answers)}.")
        view = question_view(site.edition(), question)
        # The project's own drawing, rebuilt from a list of what may stand in a page.
        title = f"{view['figure']}: {view['about']}"
        return Page(title, view, lambda: {"drawing": Markup(question_drawing(site.edition(), question))})

    return routes
