"""Figures of a model of thirty layers: intervals stay in their columns, few cases are no median, the legend is true."""

import re
from collections.abc import Mapping

import polars as pl
import pytest
import vl_convert

from mnemoscope.questions.question import EMPTY, Answer
from mnemoscope.questions.registry import load_question
from mnemoscope.show.figures.page_svg import grammar
from mnemoscope.show.figures.panels import narrow_specification, specification
from mnemoscope.show.figures.paper import key_patterns, key_removals, refinement_events

LAYERS = 30
PATTERNS = {"shallow_only": 0.3, "both": 0.1, "semantic_only": 0.2, "none": 0.4} | {"shallow": 0.4, "covered": 0.6}
EVENTS = {"residual": 0.5, "agreement": 0.2, "composition": 0.2, "ffn": 0.1, "changed": 0.3}


def answered(question: str, shares: Mapping[str, float], *, counts: Mapping[str, int] | None = None) -> Answer:
    """The same shares in every layer, give or take 0.03."""
    rows = [
        (layer, name, share, (counts or {}).get(name, 500), share - 0.03, share + 0.03)
        for layer in range(LAYERS)
        for name, share in shares.items()
    ]
    table = pl.DataFrame(rows, schema=dict(EMPTY.schema), orient="row")
    return Answer(load_question(question), table, "over memories", "", tuple(range(LAYERS)), LAYERS)


STACKED = {"key_patterns": (key_patterns, PATTERNS, 3), "refinement_events": (refinement_events, EVENTS, 2)}


@pytest.mark.parametrize("question", STACKED)
@pytest.mark.parametrize("narrow", [False, True])
def test_intervals_stand_inside_their_columns_side_by_side(question: str, narrow: bool) -> None:
    module, shares, bars = STACKED[question]
    answer = answered(question, shares)
    figure = module.figure(answer)  # type: ignore[attr-defined]
    whole = narrow_specification(answer, figure) if narrow else specification(answer, figure, about="")
    svg = vl_convert.vegalite_to_svg(whole, vl_version=grammar())
    columns = [
        (float(x), float(x) + float(width))
        for x, width in re.findall(r'aria-roledescription="bar" d="M([\d.]+),[\d.]+h([\d.]+)', svg)
    ][:LAYERS]
    places = sorted(
        (float(x), float(x) + float(length))
        for x, length, height in re.findall(
            r'aria-roledescription="rule mark" transform="translate\(([\d.]+),[\d.]+\)" x2="([\d.]+)" y2="([-\d.]+)"'
            r'[^>]* stroke-width="1.5"',
            svg,
        )
        if float(height) != 0 or float(length) < 20
    )
    assert len(columns) == LAYERS
    assert len(places) == LAYERS * bars * 3  # a bar, and its two ends
    for place, (left, right) in enumerate(columns):
        own = places[place * bars * 3 : (place + 1) * bars * 3]
        assert left < own[0][0] < own[-1][1] < right
        assert len({round(x, 3) for x, end in own if x == end}) == bars


@pytest.mark.parametrize(("question", "words"), [("key_patterns", "of any pattern"), ("refinement_events", "residual")])
def test_what_each_of_the_bars_of_a_column_is_is_said(question: str, words: str) -> None:
    module, shares, _ = STACKED[question]
    said = module.figure(answered(question, shares)).axes  # type: ignore[attr-defined]
    about = said[said.index("thin bars of a column") :]
    assert words in about
    assert "left" in about


def test_medians_of_few_triggers_are_not_drawn_and_the_caption_says_so() -> None:
    medians = {f"{one}_median": -0.5 for one in ("first", "last", "random")}
    kinds = {f"last_median_{kind}": -0.5 for kind in ("shallow", "semantic", "both", "none")}
    counts = {"last_median_shallow": 10, "last_median_semantic": 9, "last_median_both": 1}
    figure = key_removals.figure(answered("key_removals", medians | kinds, counts=counts))
    drawn = [row for row in figure.panels[1].rows["key_removals_kinds"] if row["value"] is not None]
    assert ({row["series"] for row in drawn}, len(drawn)) == ({"shallow", "no pattern"}, 2 * LAYERS)
    assert "fewer than 10 triggers" in figure.axes


def test_a_dotted_line_is_dotted_in_the_legend_alone() -> None:
    answer = answered("key_patterns", PATTERNS)
    whole = specification(answer, key_patterns.figure(answer), about="")
    svg = vl_convert.vegalite_to_svg(whole, vl_version=grammar())
    entries = re.findall(r'legend-symbol".*?<path ([^>]*)/>.*?<text [^>]*>([^<]*)<', svg, flags=re.DOTALL)
    dotted = {label: 'stroke-dasharray="2,2"' in symbol for symbol, label in entries if label.startswith("the paper")}
    assert dotted == {
        "the paper: 65-80 % under a pattern": False,
        "the paper: dotted line: semantic ones overtake": True,
    }
