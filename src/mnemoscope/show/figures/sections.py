"""One question of the paper as a section to read: figure and reading, ours beside the paper, and the tables.

The report's page and the pages of `serve` show the same sections; each only draws the figure in its own way.

The paper's figures are those of one model of 16 layers; a small model need not repeat them. Claims, rules and findings
are declared by the questions; each rule is printed, in words, beside its verdict: yes, no, undecided, or a dash where
nothing can be judged.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.foundation.formatting import DASH, format_interval, format_layers, format_value
from mnemoscope.questions.answers import answers_with
from mnemoscope.questions.question import Answer, Claim, Finding, Outcome, Row
from mnemoscope.questions.registry import room_of
from mnemoscope.questions.verdicts import NOTHING_FOUND, of_few_documents
from mnemoscope.show.figures.chart import Cell, Figure, Table, cell
from mnemoscope.show.figures.panels import specification


@dataclass(frozen=True)
class ComparisonLine:
    """One line of the comparison, in words; `shown` is yes, no, undecided or a dash."""

    question: str
    figure: str
    text: str
    paper: str
    ours: str
    interval: str
    shown: str
    rule: str


@dataclass(frozen=True)
class Section:
    """What there is to read about one question; `missing` says why there is no figure, and is empty where there is."""

    question: str
    figure: str
    about: str
    asked: str
    missing: str
    axes: str
    reading: str
    interval: str
    comparison: tuple[ComparisonLine, ...]
    tables: tuple[Table, ...]


def draw_figure(question: str, answers: Mapping[str, Answer]) -> Figure:
    """The figure of a question, drawn by the module of that name in this room; `answers` may hold others besides."""
    figure: Figure = _drawing_module(question).figure({one: answers[one] for one in drawn_questions(question)})
    return figure


def drawn_questions(question: str) -> tuple[str, ...]:
    """The questions whose answers the figure of this one draws, its own first."""
    return (question, *getattr(_drawing_module(question), "BESIDES", ()))


def _drawing_module(question: str) -> Any:
    return import_module(f"mnemoscope.show.figures.{room_of(question)}.{question}")


def drawn_figure(atlas: Atlas, answers: Mapping[str, Answer], question: str) -> dict[str, Any]:
    """The figure of a question as Vega-Lite, with the names of model and text below its title."""
    about = f"model {atlas.manifest.model.spec}, text {atlas.manifest.corpus.spec}"
    return specification(answers[question], draw_figure(question, answers), about=about)


def chart(atlas: Atlas | str | Path, question: str) -> alt.VConcatChart:
    """The figure of one question as a chart of Altair, its panels below one another; its data are inside it.

    The answer is made where the atlas has none; nothing is written. Raises what `answer` raises.
    """
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    return alt.VConcatChart.from_dict(drawn_figure(opened, answers_with(opened, question), question))


def section(question: str, answers: Mapping[str, Answer]) -> Section:
    """The section of a question, drawn; `answers` may hold others besides."""
    answer = answers[question]
    figure = Figure((), "", "") if answer.missing else draw_figure(question, answers)
    return Section(
        question=question,
        figure=answer.question.paper.figure,
        about=answer.question.title,
        asked=answer.question.paper.question,
        missing=answer.missing,
        axes=figure.axes,
        reading=figure.reading,
        interval=answer.interval if figure.intervals else "",
        comparison=tuple(_compare_answer(answer, answers)),
        tables=() if answer.missing else _tables(answer, figure),
    )


def compare_with_paper(answers: Mapping[str, Answer]) -> list[ComparisonLine]:
    """Every claim of the paper with our number, in the paper's order; after those of a figure, what else it found."""
    return [line for answer in answers.values() for line in _compare_answer(answer, answers)]


def _compare_answer(answer: Answer, answers: Mapping[str, Answer]) -> list[ComparisonLine]:
    claims = answer.question.paper.claims
    lines = [_compare(answer, one, _judge(answer, one), tested=answer.total(one.by)) for one in claims]
    if (finding := answer.question.finding) is not None:
        lines.append(_compare(answer, finding, NOTHING_FOUND if answer.missing else finding.test(answers)))
    return lines


def _judge(answer: Answer, claim: Claim) -> Outcome:
    """Our number beside that of the claim, and the verdict; none where the number tested does not exist."""
    row, tested = answer.total(claim.name), answer.total(claim.by or claim.name)
    if row is None:
        return NOTHING_FOUND
    verdict = None if claim.test is None or tested is None else claim.test(answer, tested)
    ours = format_value(row.value, claim.form) + _place(row)
    return ours, format_interval(row.low, row.high, claim.form), verdict


def _place(row: Row) -> str:
    """The layer that a total is of, if it is of one."""
    layer = row.own.get("at_layer", row.own.get("best_layer"))
    return "" if layer is None else f" (layer {layer:.0f})"


def _compare(answer: Answer, stated: Claim | Finding, outcome: Outcome, *, tested: Row | None = None) -> ComparisonLine:
    """A line of the comparison; an answer of too few documents decides nothing. `tested` is told beside the rule."""
    ours, interval, verdict = outcome
    shown = DASH if verdict is None else "undecided" if of_few_documents(answer) else verdict
    where = answer.question.id, answer.question.paper.figure, stated.text, stated.paper
    rule = stated.rule if tested is None else f"{stated.rule}: {tested.text_and_interval}"
    return ComparisonLine(*where, ours, interval, shown, rule)


def describe_upper_layers(answer: Answer) -> str:
    """Which layers the upper ones are here, in words."""
    if not answer.upper:
        return "none of the mined layers is an upper one"
    return f"the upper layers are {format_layers(answer.upper)}"


def _tables(answer: Answer, figure: Figure) -> tuple[Table, ...]:
    """Everything that the answer says, in tables narrow enough to read: by layer, the figure's own, and the totals."""
    names = answer.names()
    by_layer = [name for name in names if answer.rows(name)]
    totals = [name for name in names if name not in by_layer and not answer.question.number(name).table]
    captions = dict.fromkeys(["", *(number.table for number in answer.question.numbers)])
    groups = {one: [name for name in by_layer if answer.question.number(name).table == one] for one in captions}
    layers = [_by_layer(answer, group, caption or "by layer") for caption, group in groups.items() if group]
    return (*layers, *figure.tables, *([_totals(answer, totals)] if totals else []))


def _by_layer(answer: Answer, names: list[str], caption: str) -> Table:
    """A row per layer and one for all of them; the number of cases once, where it is the same for all names."""
    lines: list[tuple[Cell, ...]] = []
    for layer in (*answer.layers, None):
        rows = [answer.at(name, layer) for name in names]
        if not any(rows):
            continue
        counts = {row.count for row in rows if row is not None}
        cases = f"{counts.pop():,}" if len(counts) == 1 else "differ"
        lines.append((Cell("all" if layer is None else str(layer)), *(cell(row) for row in rows), Cell(cases)))
    return Table(caption, ("layer", *(answer.label(name) for name in names), "cases"), tuple(lines))


def _totals(answer: Answer, names: list[str]) -> Table:
    rows = [row for name in names if (row := answer.total(name)) is not None]
    lines = ((Cell(answer.label(row.name) + _place(row)), cell(row), Cell(f"{row.count:,}")) for row in rows)
    return Table("over all layers", ("what", "value", "cases"), tuple(lines))


def csv_link(table: pl.DataFrame) -> str:
    """The whole answer as a `data:` link that a browser saves as CSV."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(table.write_csv().encode()).decode()
