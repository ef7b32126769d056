"""The answers of an atlas that has all of them, and their figures."""

import pytest

from mnemoscope.questions.answers import load_answers
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Figure
from mnemoscope.show.figures.sections import draw_figure
from reports.reported_atlas import reported


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    return load_answers(reported(tmp_path_factory.mktemp("atlas"))).answers


@pytest.fixture(scope="module")
def figures(answers: dict[str, Answer]) -> dict[str, Figure]:
    return {question: draw_figure(question, answers) for question in answers}
