"""The one page of a report, put together from a template: text through autoescape, data as JSON that no text can leave.

Everything is inside the page: style, scripts, charts, tables. It loads nothing; its own content policy forbids that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mnemoscope.atlas import Atlas
from mnemoscope.reports.answered import Answered
from mnemoscope.reports.chart import Figure
from mnemoscope.reports.comparison import Compared, compared, upper_spoken
from mnemoscope.reports.examples import Case, Example
from mnemoscope.reports.methods import methods
from mnemoscope.reports.summary import cards, warnings
from mnemoscope.reports.tables import Table, csv_link, tables

TITLES = {
    "key_patterns": "what keys detect",
    "key_removals": "which token matters",
    "value_agreement": "whether values predict what follows",
    "value_rank": "how high values rank it",
    "value_confidence": "whether confident values are right",
    "layer_activity": "how many memories fire",
    "layer_composition": "whether a layer says what one of its memories says",
    "refinement_match": "when the prediction is there",
    "refinement_confidence": "how sure the stream is of it",
    "refinement_events": "how a layer changes the prediction",
}


@dataclass(frozen=True)
class Section:
    """What the page shows of one question."""

    question: str
    figure: str
    title: str
    asked: str
    missing: str
    axes: str
    reading: str
    interval: str
    drawing: Markup
    comparison: tuple[Compared, ...]
    tables: tuple[Table, ...]
    csv: str


def page(
    atlas: Atlas,
    answers: Mapping[str, Answered],
    *,
    figures: Mapping[str, Figure],
    specifications: Mapping[str, dict[str, Any]],
    drawings: Mapping[str, str],
    examples: list[Example],
    cases: list[Case],
    vega: str,
    inside: bool,
) -> str:
    """The page as HTML; `inside` says whether it lies in the atlas, so that it can point to the tables there."""
    lines = compared(answers)
    sections = [
        _section(answer, figures.get(question), drawings.get(question, ""), lines)
        for question, answer in answers.items()
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_part("page.html"))
    return template.render(
        model=atlas.manifest["model"].get("spec"),
        text=atlas.manifest["corpus"].get("spec"),
        style=Markup(_part("page.css")),
        scripts=[Markup(_closed(script)) for script in (vega, _part("page.js"))],
        charts=Markup(embedded(specifications)),
        warnings=warnings(atlas),
        cards=cards(atlas, answers),
        comparison=lines,
        upper=upper_spoken(next(iter(answers.values()))),
        sections=sections,
        examples=examples,
        cases=cases,
        methods=methods(atlas, answers),
        inside=inside,
    )


def _section(answer: Answered, figure: Figure | None, drawing: str, lines: list[Compared]) -> Section:
    return Section(
        question=answer.question,
        figure=answer.paper.figure,
        title=TITLES[answer.question],
        asked=answer.paper.question,
        missing=answer.missing,
        axes="" if figure is None else figure.axes,
        reading="" if figure is None else figure.reading,
        interval=answer.interval if figure is not None and figure.intervals else "",
        # The project's own drawing; the renderer has escaped its texts.
        drawing=Markup(drawing),
        comparison=tuple(line for line in lines if line.question == answer.question),
        tables=() if figure is None else tuple(tables(answer)),
        csv="" if figure is None else csv_link(answer.table),
    )


def _part(name: str) -> str:
    return files("mnemoscope.reports").joinpath("template", name).read_text(encoding="utf-8")


def _closed(script: str) -> str:
    """The script without anything that would end it early or open a comment in HTML."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def embedded(value: object) -> str:
    """JSON that can stand inside a script element: nothing in it is markup."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})
