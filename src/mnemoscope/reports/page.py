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
from mnemoscope.figures.chart import Figure
from mnemoscope.figures.examples import Case, Example, judged_sentence
from mnemoscope.figures.methods import methods
from mnemoscope.figures.sections import Section, compare_with_paper, csv_link, describe_upper_layers, section
from mnemoscope.figures.summary import cards, warnings
from mnemoscope.questions.question import Answer


@dataclass(frozen=True)
class Shown:
    """A section with its figure, drawn, and its whole answer to take away."""

    section: Section
    drawing: Markup
    csv: str


def page(
    atlas: Atlas,
    answers: Mapping[str, Answer],
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
    lines = compare_with_paper(answers)
    sections = [
        Shown(
            section(answer, figures, lines),
            # The project's own drawing; the renderer has escaped its texts.
            Markup(drawings.get(question, "")),
            csv_link(answer.table) if question in figures else "",
        )
        for question, answer in answers.items()
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_part("page.html"))
    return template.render(
        model=atlas.manifest.model.spec,
        text=atlas.manifest.corpus.spec,
        style=Markup(_part("page.css")),
        scripts=[Markup(_escape_script(script)) for script in (vega, _part("page.js"))],
        charts=Markup(embed_json(specifications)),
        warnings=warnings(atlas),
        cards=cards(atlas, answers),
        comparison=lines,
        upper=describe_upper_layers(next(iter(answers.values()))),
        sections=sections,
        examples=examples,
        cases=cases,
        judged=judged_sentence(answers["refinement_events"]),
        methods=methods(atlas, answers),
        inside=inside,
    )


def _part(name: str) -> str:
    return files("mnemoscope.reports").joinpath("template", name).read_text(encoding="utf-8")


def _escape_script(script: str) -> str:
    """The script without anything that would end it early or open a comment in HTML."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def embed_json(value: object) -> str:
    """JSON that can stand inside a script element: nothing in it is markup."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})
