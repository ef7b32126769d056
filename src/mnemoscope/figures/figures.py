"""A figure for every question, in the paper's order: drawn, described, and put together as one specification each."""

from collections.abc import Mapping
from importlib import import_module
from textwrap import wrap
from typing import Any

from mnemoscope.atlas.visible import without_controls
from mnemoscope.figures.chart import Figure
from mnemoscope.figures.panels import assembled
from mnemoscope.questions.answered import Answered

TITLE = 72
"""Characters of a line of a figure's title: as wide as its panels."""


def draw_figure(question: str, answers: Mapping[str, Answered]) -> Figure:
    """The figure of a question, drawn by the module of that name in this room; `answers` may hold others besides."""
    found = import_module(f"mnemoscope.figures.{question}").figure(answers)
    assert isinstance(found, Figure)
    return found


def drawn(answers: Mapping[str, Answered]) -> dict[str, Figure]:
    """The figure of every question that has an answer."""
    return {question: draw_figure(question, answers) for question, answer in answers.items() if not answer.missing}


def specification(answer: Answered, figure: Figure, *, about: str) -> dict[str, Any]:
    """The figure as Vega-Lite, for the page and for the files; `about` (model, text) stands below its title."""
    bars = f"; thin bars: 95 % interval {answer.interval}" if figure.intervals else ""
    # The renderer dies, and the process with it, on a control code, which the name of a model or a text may hold.
    subtitle = [without_controls(line) for line in (about, f"layers counted from 0{bars}")]
    title = wrap(f"{answer.paper.figure}: {answer.paper.question}", TITLE)
    return assembled(figure.panels, title=title, subtitle=subtitle, description=figure.reading)
