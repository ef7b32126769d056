"""A layer's picture: its points stand where the drawing library would put them, and lead to their memories."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import vl_convert

from mnemoscope.atlas import open_atlas
from mnemoscope.figures.layer_picture import HEIGHT, Frame, Scale, axes, frame, picture
from mnemoscope.figures.page_svg import grammar
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
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Frame:
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


def test_points_stand_where_the_library_puts_them(drawn: Frame) -> None:
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


def test_the_chosen_are_links_and_the_rest_is_ground(drawn: Frame) -> None:
    svg = picture(drawn, memories(ROWS), shown=[1, 2], titles=TITLES, links=LINKS)
    assert re.findall(r'href="([^"]*)"', svg) == ["/L7.M1", "/L7.M2"]
    assert len(re.findall(r"M[\d.]+ [\d.]+h0", svg)) == 2
    assert "<title>three &lt;b&gt;</title>" in svg
    assert "style" not in svg


def test_who_never_fires_stands_apart() -> None:
    scale = Scale(low=0.005, high=1.0, least=0.01, length=600.0)
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
    assert 0 <= x <= 600
    assert 0 <= y <= HEIGHT
    assert ">never<" in svg
    assert "semantic" not in svg
