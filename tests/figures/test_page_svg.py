"""Figures as SVG for pages: the answers' numbers, links to layers, and nothing that a strict content policy forbids."""

import re
from html import unescape
from typing import Any
from xml.etree import ElementTree

import altair as alt
import pytest
from jsonschema import ValidationError

from mnemoscope.atlas.schema import THE_PAPERS
from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import STYLE, Figure
from mnemoscope.show.figures.colours import BLUE, GREEN, GREY, ORANGE, PURPLE
from mnemoscope.show.figures.page_svg import ATTRIBUTES, ELEMENTS, page_svg
from mnemoscope.show.figures.panels import small_specification, specification

OURS = {"class", "role", "aria-label", "font-family", "href", "tabindex"}


@pytest.mark.fast(0, full=4)
@pytest.mark.parametrize("question", QUESTIONS)
def test_it_holds_what_a_page_may_hold_and_its_numbers(
    question: str, answers: dict[str, Answer], figures: dict[str, Figure]
) -> None:
    figure = figures[question]
    svg = page_svg(specification(answers[question], figure, about="nothing"), name=question, label="A figure")
    root = ElementTree.fromstring(svg)
    titles = []
    for element in root.iter():
        assert element.tag in ELEMENTS | {"title", "a"}
        assert set(element.attrib) <= ATTRIBUTES | OURS, element.attrib
        colours = {element.get("fill"), element.get("stroke")} - {None, "none", "currentColor"}
        assert colours <= {BLUE, GREEN, GREY, ORANGE, PURPLE}, colours
        if element.tag == "title":
            titles.append(str(element.text))
        if element.tag == "a":
            assert element.get("href") in ("/layers/0", "/layers/1")
    for panel in figure.panels:
        for rows in panel.rows.values():
            for row in rows:
                if row.get("value") is not None:
                    # What a mark says holds the number as it is read, and its cases.
                    ways = {row["said"], f"{100 * row['value']:g}%"}
                    assert any(row["count"] in title and any(way in title for way in ways) for title in titles)
    assert answers[question].question.paper.question not in unescape(svg), "the page has the title"


@pytest.mark.fast(1, full=2)
@pytest.mark.parametrize("question", QUESTIONS)
def test_it_is_right_by_the_grammar(question: str, answers: dict[str, Answer], figures: dict[str, Figure]) -> None:
    whole = specification(answers[question], figures[question], about="nothing")
    alt.VConcatChart.from_dict(whole, validate=True)
    whole["vconcat"][0]["title"] = 7
    with pytest.raises(ValidationError, match="7 is not"):
        alt.VConcatChart.from_dict(whole, validate=True)


@pytest.mark.parametrize("question", THE_PAPERS)
def test_a_small_one_is_the_first_panel_as_one_silent_picture(
    question: str, answers: dict[str, Answer], figures: dict[str, Figure]
) -> None:
    small = small_specification(answers[question], figures[question])
    svg = page_svg(small, name="small", label="Seen at a glance", silent=True)
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root.get("aria-label")) == ("img", "Seen at a glance")
    assert not [element for element in root.iter() if element.tag in ("a", "title")]
    assert float(root.attrib["width"]) < 410
    assert float(root.attrib["height"]) < 200
    texts = {element.text for element in root.iter("text")}
    assert not texts & {"share", "share of memories", "share of prefixes", "layer (counted from 0)"}
    assert len([element for element in root.iter("path") if element.get("fill") or element.get("stroke")]) > 3


def test_text_is_text_and_names_are_the_figures_own() -> None:
    hostile: dict[str, Any] = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.1.0.json",
        "config": STYLE,
        "datasets": {"rows": [{"a": "<script>ran()</script>", "b": 1}]},
        "data": {"name": "rows"},
        "mark": {"type": "bar", "clip": True},
        "encoding": {"x": {"field": "a"}, "y": {"field": "b", "type": "quantitative"}},
    }
    svg = page_svg(hostile, name="mine", label='"><script>')
    assert "<script" not in svg
    assert "&lt;script&gt;ran()" in svg
    assert set(re.findall(r'id="([^"]*)"', svg)) <= {"mine-clip0"}
