"""A layer's picture: axes and points stand where the drawing library would put them; points lead to their memories."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import polars as pl
import pytest
import vl_convert

from mnemoscope.atlas import open_atlas
from mnemoscope.show.figures.chart import STYLE
from mnemoscope.show.figures.colours import BLUE, PATTERN_COLOURS
from mnemoscope.show.figures.layer_picture import HEIGHT, WIDTH, LogScale, PictureFrame, draw_axes, frame, picture
from mnemoscope.show.figures.layer_picture import TITLES as AXES
from mnemoscope.show.figures.page_svg import grammar
from web.layer_atlas import Row, layered

ROWS: list[Row] = [
    (100, 3, 3, 0.5, 1.0, "shallow"),
    (37, 6, 1, 0.02, 2.0, "semantic"),
    (5, 1, None, 0.0007, 3.0, "both"),
    (1, 2, 2, 0.11, 4.0, "none"),
]
TITLES = ["one", "two", "three <b>", 'four "']
LINKS = [f"/L7.M{memory}" for memory in range(4)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> PictureFrame:
    return frame(open_atlas(layered(tmp_path_factory.mktemp("atlas"), ROWS)), patterns=True)


def memories(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "memory": range(len(rows)),
            "rate": [row[0] / 100 for row in rows],
            "max_probability": [row[3] for row in rows],
            "kind": [row[5] for row in rows],
        }
    )


def axes(rate: LogScale, confidence: LogScale, *, patterns: bool, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The picture as the library's specification, with these rows (rate, confidence, kind) as its points."""
    kinds = {label: colour for _, label, colour in PATTERN_COLOURS} if patterns else {"memory": BLUE}
    symbol = {"symbolType": "circle", "symbolOpacity": 1, "symbolSize": 70}
    legend = alt.Legend(orient="top", title=None, offset=8, columns=2, **symbol)
    values = rate.ticks() + ([rate.never] if rate.low < rate.least else [])
    across = alt.Axis(
        values=values,
        labelExpr=f"datum.value < {rate.least!r} ? 'never' : format(datum.value, '~p')",
        labelOverlap="greedy",
    )
    up = alt.Axis(values=confidence.ticks(), format="~p", labelOverlap="greedy")
    drawn = (
        alt.Chart(alt.NamedData("points"))
        .mark_point(filled=True)
        .encode(
            x=alt.X("rate:Q", title=AXES[0], axis=across).scale(type="log", domain=[rate.low, rate.high], nice=False),
            y=alt.Y("confidence:Q", title=AXES[1], axis=up).scale(
                type="log", domain=[confidence.low, confidence.high], nice=False
            ),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=list(kinds), range=list(kinds.values())),
                legend=legend if patterns else None,
            ),
        )
        .properties(width=WIDTH, height=HEIGHT, name="points")
    )
    config = STYLE | {"legend": {"columnPadding": 34} | STYLE["legend"]}
    return {**drawn.to_dict(), "config": config, "datasets": {"points": list(rows)}, "padding": 4, "background": None}


Place = tuple[float, float]


def texts(
    element: ElementTree.Element, at: Place = (0.0, 0.0), *, turned: bool = False
) -> Iterator[tuple[str, str, Place]]:
    """Every text with its anchor and where it stands in the drawing; what is turned, along its axis."""
    for x, y, turn in re.findall(r"translate\(([^,)]*),([^)]*)\)|(rotate)", element.get("transform", "")):
        turned = turned or bool(turn)
        if not turn:
            step = (float(y), -float(x)) if turned else (float(x), float(y))
            at = (at[0] + step[0], at[1] + step[1])
    if element.tag.endswith("text") and element.text and element.get("opacity") != "0":
        own = (float(element.get("x", 0)), float(element.get("y", 0)))
        own = (own[1], -own[0]) if turned else own
        yield element.text, element.get("text-anchor", ""), (at[0] + own[0], at[1] + own[1])
    for child in element:
        yield from texts(child, at, turned=turned)


SCALES = {
    "as usual": (LogScale(0.002, 1.0, 0.01, WIDTH), LogScale(1e-4, 1.0, 1e-4, HEIGHT)),
    "all fire": (LogScale(0.01, 0.6, 0.01, WIDTH), LogScale(0.003, 0.9, 0.003, HEIGHT)),
    "small values": (LogScale(1e-5, 1.0, 4e-5, WIDTH), LogScale(1e-9, 0.002, 1e-8, HEIGHT)),
    "many labels": (LogScale(1e-9, 1.0, 5e-9, WIDTH), LogScale(1e-14, 1.0, 1e-14, HEIGHT)),
    "narrow": (LogScale(0.5, 0.52, 0.5, WIDTH), LogScale(0.2, 0.3, 0.2, HEIGHT)),
}


@pytest.mark.parametrize("patterns", [True, False])
@pytest.mark.parametrize("name", SCALES)
def test_axes_are_those_of_the_library(name: str, patterns: bool) -> None:
    rate, confidence = SCALES[name]
    kind = PATTERN_COLOURS[0][1] if patterns else "memory"
    rows = [{"rate": rate.high, "confidence": confidence.high, "kind": kind}]
    specification = axes(rate, confidence, patterns=patterns, rows=rows)
    theirs = ElementTree.fromstring(vl_convert.vegalite_to_svg(specification, vl_version=grammar()))
    ours = ElementTree.fromstring(draw_axes(PictureFrame(rate, confidence, patterns)))
    expected, found = sorted(texts(theirs)), sorted(texts(ours))
    assert [(text, anchor) for text, anchor, _ in found] == [(text, anchor) for text, anchor, _ in expected]
    # The library measures letters in a font of its own: the drawing as a whole may be some pixels wider.
    shift = np.array([place for _, _, place in found]) - np.array([place for _, _, place in expected])
    assert np.abs(shift - np.median(shift, axis=0)).max() < 1.5
    assert np.abs(np.median(shift, axis=0)).max() < 8
    for side in ("width", "height"):
        assert float(ours.get(side, 0)) == pytest.approx(float(theirs.get(side, 0)), abs=10)


def test_points_stand_where_the_library_puts_them(drawn: PictureFrame) -> None:
    rows = [{"rate": row[0] / 100, "confidence": row[3], "kind": "shallow"} for row in ROWS]
    whole = axes(drawn.rate, drawn.confidence, patterns=True, rows=rows)
    theirs = vl_convert.vegalite_to_svg(whole, vl_version=grammar())
    marks = theirs[theirs.index("points_marks") :].partition("</g>")[0]
    expected = [tuple(map(float, place)) for place in re.findall(r'transform="translate\(([\d.]+),([\d.]+)\)"', marks)]
    svg = picture(drawn, memories(ROWS), shown=range(4), titles=TITLES, links=LINKS)
    ours = {
        int(number): (float(x), float(y))
        for number, x, y in re.findall(r'href="/L7.M(\d+)".*?cx="([^"]*)" cy="([^"]*)"', svg)
    }
    assert len(expected) == len(ours) == 4
    for number, place in enumerate(expected):
        assert ours[number] == pytest.approx(place, abs=0.051)


def test_the_chosen_are_links_and_the_rest_is_ground(drawn: PictureFrame) -> None:
    svg = picture(drawn, memories(ROWS), shown=[1, 2], titles=TITLES, links=LINKS)
    assert re.findall(r'href="([^"]*)"', svg) == ["/L7.M1", "/L7.M2"]
    assert len(re.findall(r"M[\d.]+ [\d.]+h0", svg)) == 2
    assert "<title>three &lt;b&gt;</title>" in svg
    assert "style" not in svg


def test_rings_have_the_colour_of_their_kind_and_lie_below_the_points(drawn: PictureFrame) -> None:
    kinds = {kind: colour for kind, _, colour in PATTERN_COLOURS}
    below = memories(ROWS).with_columns(negative=pl.lit(value=True))
    both = pl.concat([memories(ROWS).with_columns(negative=pl.lit(value=False)), below])
    svg = picture(drawn, both, shown=range(8), titles=TITLES * 2, links=LINKS * 2)
    groups = re.findall(
        r'<g fill="([^"]*)"(?: pointer-events="all" stroke="([^"]*)")? (?:fill|stroke)-opacity="0.75">'
        r'<a href="/L7.M(\d)"',
        svg,
    )
    rings, points = groups[:4], groups[4:]
    assert rings == [("none", kinds[row[5]], str(number)) for number, row in enumerate(ROWS)]
    assert points == [(kinds[row[5]], "", str(number)) for number, row in enumerate(ROWS)]


def test_who_never_fires_stands_apart() -> None:
    scale = LogScale(low=0.005, high=1.0, least=0.01, length=600.0)
    never, rare, often = scale.at(np.array([0.0, 0.01, 1.0]))
    assert 0 < never < rare < often == 600
    assert min(scale.ticks()) >= 0.01


def test_without_patterns_and_with_one_value_there_is_a_picture(tmp_path: Path) -> None:
    same: list[Row] = [(0, 3, None, 0.25, 1.0, "none")] * 3
    found = frame(open_atlas(layered(tmp_path, same, patterns=False)), patterns=False)
    rows = memories(same).with_columns(kind=pl.lit(None, dtype=pl.String))
    svg = picture(found, rows, shown=range(3), titles=["a", "b", "c"], links=LINKS)
    places = {(float(x), float(y)) for x, y in re.findall(r'cx="([^"]*)" cy="([^"]*)"', svg)}
    assert len(places) == 1
    ((x, y),) = places
    assert 0 <= x <= WIDTH
    assert 0 <= y <= HEIGHT
    assert ">never<" in svg
    assert "semantic" not in svg
