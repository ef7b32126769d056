"""One question of the paper as a section to read: figure and reading, ours beside the paper, and the tables.

The report's page and the pages of `serve` show the same sections; each only draws the figure in its own way.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mnemoscope.figures.chart import Figure
from mnemoscope.figures.comparison import Compared
from mnemoscope.figures.tables import Table, tables
from mnemoscope.questions.answered import Answered


@dataclass(frozen=True)
class Section:
    """What there is to read about one question; `missing` says why there is no figure, and is empty where there is."""

    question: str
    figure: str
    title: str
    asked: str
    missing: str
    axes: str
    reading: str
    interval: str
    comparison: tuple[Compared, ...]
    tables: tuple[Table, ...]


def section(answer: Answered, figures: Mapping[str, Figure], lines: list[Compared]) -> Section:
    """The section of the question answered, with its own of the lines of the comparison."""
    figure = figures.get(answer.question)
    return Section(
        question=answer.question,
        figure=answer.paper.figure,
        title=answer.asked.title,
        asked=answer.paper.question,
        missing=answer.missing,
        axes="" if figure is None else figure.axes,
        reading="" if figure is None else figure.reading,
        interval=answer.interval if figure is not None and figure.intervals else "",
        comparison=tuple(line for line in lines if line.question == answer.question),
        tables=() if figure is None else tuple(tables(answer)),
    )
