"""One question as a section: figure and reading, the comparison with the paper, and the tables.

The report and the pages of `serve` show the same sections; each only embeds the figure in its own way.

The paper's figures are of one model of 16 layers, which a small model need not reproduce. Claims, rules and findings
are declared by the questions; each rule is printed beside its verdict: yes, no, undecided, or a dash without one.
"""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.schema import question_named
from mnemoscope.foundation.formatting import DASH, Table, format_interval, format_layers, format_value
from mnemoscope.foundation.words import in_words
from mnemoscope.questions.answers import answers_with
from mnemoscope.questions.question import EVERY, LITERAL, Answer, Claim, Finding, Outcome, Row
from mnemoscope.questions.registry import room_of
from mnemoscope.questions.verdicts import NOTHING_FOUND, of_few_documents
from mnemoscope.show.figures.chart import Cell, Data, Figure, cell
from mnemoscope.show.figures.panels import specification


@dataclass(frozen=True)
class ComparisonLine:
    question: str
    figure: str
    text: str
    paper: str
    literal: str
    literal_interval: str
    literal_shown: str
    ours: str
    interval: str
    shown: str
    rule: str
    why: str


def draw_figure(question: str, answers: Mapping[str, Answer]) -> Figure:
    drawing: Any = import_module(f"mnemoscope.show.figures.{room_of(question)}.{question}")
    drawn = drawing.figure(*(answers[one] for one in (question, *getattr(drawing, "BESIDES", ()))))
    figure: Figure = in_words(drawn, answers[question].words)
    return figure


def drawn_figure(atlas: Atlas, answers: Mapping[str, Answer], question: str) -> Data:
    about = f"model {atlas.manifest.model.spec}, text {atlas.manifest.corpus.spec}"
    return specification(answers[question], draw_figure(question, answers), about=about)


def chart(atlas: Atlas | str | Path, question: str) -> alt.VConcatChart:
    """The figure of one question as an Altair chart with its data, its panels in a column.

    A missing answer is computed; nothing is written. Raises what `answer` raises.

    Args:
        atlas: An atlas, or its folder.
        question: The name of a question, such as value_agreement.
    """
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    question = question_named(question)
    return alt.VConcatChart.from_dict(drawn_figure(opened, answers_with(opened, question), question))


def section(question: str, answers: Mapping[str, Answer]) -> Data:
    """The texts and tables of one question; `missing` is the reason why there is no figure, else empty."""
    answer = answers[question]
    figure = Figure((), "", "", "", "") if answer.missing else draw_figure(question, answers)
    return {
        **answer.heading(),
        "asked": answer.question.paper.question,
        "missing": answer.missing,
        "axes": figure.axes,
        "reading": figure.reading,
        "meaning": f"{figure.means} {figure.differs}",
        "interval": answer.interval if figure.intervals else "",
        "judged": " and ".join({row["judged_by"]: 0 for row in answer.table.to_dicts() if row.get("judged_by")}),
        "comparison": tuple(map(asdict, compare_answer(answer, answers))),
        "tables": [
            {"caption": one.caption, "header": one.columns, "rows": [[*map(asdict, row)] for row in one.rows]}
            for one in (() if answer.missing else _tables(answer, figure))
        ],
    }


def compare_with_paper(answers: Mapping[str, Answer]) -> list[ComparisonLine]:
    """Every claim of the paper with our number, in the paper's order, and after a figure's claims its finding."""
    return [line for answer in answers.values() for line in compare_answer(answer, answers)]


def compare_answer(answer: Answer, answers: Mapping[str, Answer]) -> list[ComparisonLine]:
    lines = []
    for claim in answer.question.paper.claims:
        if claim.left_out([name for name in answer.names() if answer.total(name) is not None]):
            continue
        literal = LITERAL if claim.name in answer.question.literal else ""
        lines.append(_compare(answer, claim, _judge(answer, claim, literal), _judge(answer, claim, "")))
    if (finding := answer.question.finding) is not None:
        literal = LITERAL if finding.literal else ""
        outcomes = (NOTHING_FOUND if answer.missing else finding.test(answers, prefix) for prefix in (literal, ""))
        lines.append(_compare(answer, finding, *outcomes))
    return lines


def _judge(answer: Answer, claim: Claim, prefix: str) -> Outcome:
    row, tested = answer.total(prefix + claim.name), answer.total(prefix + (claim.by or claim.name))
    if row is None:
        return NOTHING_FOUND
    verdict = None if claim.test is None or tested is None else claim.test(answer, tested)
    count = f" ({round(row.value * row.count):,} of {row.count:,})" if claim.counted else ""
    number = format_value(row.value, claim.form) + count + _place(row)
    return number, format_interval(row.low, row.high, claim.form), verdict


def _place(row: Row) -> str:
    """Where it is, or who judged it."""
    layer, judges = row.own.get("at_layer", row.own.get("best_layer")), row.own.get("judged_by")
    return f" (layer {layer:.0f})" if layer is not None else f" (judged {judges})" if judges else ""


def _compare(answer: Answer, stated: Claim | Finding, literal: Outcome, ours: Outcome) -> ComparisonLine:
    ungated = isinstance(stated, Claim) and stated.ungated and answer.gated
    few = of_few_documents(answer)

    def spoken(outcome: Outcome) -> tuple[str, str, str]:
        number, interval, verdict = outcome
        shown = DASH if verdict is None else "undecided" if few else verdict
        return number, interval, "not of a gated layer" if ungated else shown

    tested = answer.total(stated.by) if isinstance(stated, Claim) and stated.by else None
    rule = stated.rule if tested is None else f"{stated.rule}: {tested.text_and_interval}"
    why = answer.question.why if literal != ours else ""
    where = answer.question.id, answer.question.paper.figure, stated.text, stated.paper
    return ComparisonLine(*where, *spoken(literal), *spoken(ours), rule, why)


def describe_upper_layers(answer: Answer) -> str:
    if not answer.upper:
        return "none of the mined layers is an upper one"
    return f"the upper layers are {format_layers(answer.upper)}"


def _tables(answer: Answer, figure: Figure) -> tuple[Table, ...]:
    names = answer.names()
    by_layer = [name for name in names if answer.rows(name)]
    plain = {name: name.removeprefix(LITERAL).removeprefix(EVERY) for name in names}
    totals = [name for name in names if name not in by_layer and not answer.question.number(plain[name]).table]
    captions = dict.fromkeys(["", *(number.table for number in answer.question.numbers)])
    groups = {one: [name for name in by_layer if answer.question.number(name).table == one] for one in captions}
    layers = [_by_layer(answer, group, caption or "by layer") for caption, group in groups.items() if group]
    rows = [row for name in totals if (row := answer.total(name)) is not None]
    lines = tuple((Cell(answer.label(row.name) + _place(row)), cell(row), Cell(f"{row.count:,}")) for row in rows)
    over_all = [Table(("what", "value", "cases"), lines, caption="over all layers")] if totals else []
    return (*layers, *figure.tables, *over_all)


def _by_layer(answer: Answer, names: list[str], caption: str) -> Table:
    """A row per layer and one for all; one column of case counts if they are the same for all names."""
    lines: list[tuple[Cell, ...]] = []
    for layer in (*answer.layers, None):
        rows = [answer.at(name, layer) for name in names]
        if not any(rows):
            continue
        counts = {row.count for row in rows if row is not None}
        cases = f"{counts.pop():,}" if len(counts) == 1 else "differ"
        lines.append((Cell("all" if layer is None else str(layer)), *(cell(row) for row in rows), Cell(cases)))
    return Table(("layer", *map(answer.label, names), "cases"), lines, caption=caption)


def csv_link(table: pl.DataFrame) -> str:
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(table.write_csv().encode()).decode()
