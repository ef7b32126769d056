"""The drawing of Figure 1: every number as a bar and as text, what is below zero on the other side, files and links."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import mnemoscope as ms
from mnemoscope.errors import OptionError, StoreFailed
from mnemoscope.show.figures.colours import BLUE, GREEN, GREY, ORANGE
from mnemoscope.show.figures.figure1 import BROAD, NARROW, Figure1, Layout, draw

MINUS = "\N{MINUS SIGN}"
SVG = "{http://www.w3.org/2000/svg}"


def memory(name: str, m: float, length: float, along: float, label: str | None = None) -> dict[str, Any]:
    top = [{"id": 1, "text": " mat"}, {"id": 2, "text": "<b>&"}]
    return {"memory": name, "coefficient": m, "contribution": length, "along": along, "top": top, "label": label}


def numbers(bias: float = 1.0) -> dict[str, Any]:
    guesses = [{"id": 1, "text": " mat", "probability": 0.75}, {"id": 3, "text": "\n", "probability": 0.25}]
    return {
        "layer": 3,
        "position": 1,
        "own": None,
        "tokens": [{"id": 4, "text": " the"}, {"id": 5, "text": " cat"}],
        "memories": [memory("L3.M7", 2.0, 8.0, 6.0, 'ends in "<i>"'), memory("L3.E1.M2", -0.5, 4.0, -2.0)],
        "others": {"memories": 1, "length": 5.0, "along": 4.0},
        "bias": {"memories": 0, "length": bias, "along": bias / 2},
        "total": {"memories": 3, "length": 8.0 + bias / 2, "along": 8.0 + bias / 2},
        "normed": False,
        **dict.fromkeys(("residual", "ffn", "output"), guesses),
    }


def bars(drawn: str) -> list[tuple[str, float, float, float]]:
    """Colour, opacity, left end and width of every bar."""
    found = [one.attrib for one in ElementTree.fromstring(drawn).iter(f"{SVG}rect")]
    return [(one["fill"], float(one["fill-opacity"]), float(one["x"]), float(one["width"])) for one in found]


def texts(drawn: str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


@pytest.mark.parametrize("layout", [BROAD, NARROW])
def test_bars_are_to_scale_and_below_zero_on_the_other_side(layout: Layout) -> None:
    drawn = bars(draw(numbers(), layout))
    first, second = drawn[:4], drawn[4:8]
    assert {one[0] for one in first} == {BLUE}
    assert {one[0] for one in second} == {ORANGE}
    assert [one[1] for one in first] == [0.3, 1, 0.3, 1]  # pale on to the length, full up to the part along the sum
    zero = first[0][2]
    assert second[0][2] + second[0][3] == pytest.approx(zero, abs=0.02)  # it ends where the other begins
    assert second[0][3] * 4 == pytest.approx(first[0][3], abs=0.1)
    zero = first[2][2]
    assert second[2][2] + second[2][3] == pytest.approx(zero, abs=0.02)
    others, bias, total = drawn[8:10], drawn[10:12], drawn[12:14]
    assert [one[0][0] for one in (others, bias, total)] == [GREY, GREY, GREEN]
    unit = total[1][3] / 8.5
    for pale, full, length, along in (
        *((*first[2:], 8, 6), (*second[2:], 4, 2)),
        *((*others, 5, 4), (*bias, 1, 0.5), (*total, 8.5, 8.5)),
    ):
        assert [pale[3], full[3]] == pytest.approx([length * unit, along * unit], abs=0.02)
    left, width = min(one[2] for one in drawn), max(one[2] + one[3] for one in drawn)
    assert 0 <= left < width <= layout[0]


def test_every_number_name_and_token_is_said() -> None:
    said = texts(draw(numbers()))
    assert 'L3.M7 ends in "<i>"' in said
    assert {
        "2.00",
        "8.00",
        "6.00",
        f"{MINUS}0.50",
        "4.00",
        f"{MINUS}2.00",
        "1 other memory",
        "5.00",
        "bias",
        "8.50",
    } <= set(said)
    assert "·mat <b>&" in said
    assert {"·the", "·cat", "·mat", "⏎", "75.0 %".replace(" ", "\N{NO-BREAK SPACE}")} <= set(said)
    assert "bias" not in texts(draw(numbers(bias=0.0)))
    assert not any("own norm" in line for line in said)
    assert any("own norm" in line for line in texts(draw(numbers() | {"normed": True})))


def test_a_long_prefix_keeps_its_end_and_names_link() -> None:
    many = numbers() | {"tokens": [{"id": at, "text": f" word{at}"} for at in range(100)]}
    for layout in (BROAD, NARROW):
        said = texts(draw(many, layout))
        shown = [one for one in said if one.startswith("·word")]
        assert shown == [f"·word{at}" for at in range(100 - len(shown), 100)]
        assert f"… {100 - len(shown)} +" in said
    drawn = ElementTree.fromstring(draw(numbers(), link=lambda name: f'/{name}?a=1&b="'))
    assert [one.attrib["href"] for one in drawn.iter(f"{SVG}a")] == ['/L3.M7?a=1&b="', '/L3.E1.M2?a=1&b="']


def test_a_template_s_tokens_have_no_box() -> None:
    many = [{"id": at, "text": f" t{at}"} for at in range(6)]
    for position, own, boxed in ((5, None, 6), (3, 3, 3), (1, 3, 2), (-1, 2, 0)):
        drawn = draw(numbers() | {"tokens": many, "position": position, "own": own})
        assert len(re.findall(r'd="M[\d.]+ 28h', drawn)) == boxed
        faint = [one.text for one in ElementTree.fromstring(drawn).iter(f"{SVG}text") if "fill-opacity" in one.attrib]
        pale = [f"·t{at}" for at in range(6) if own is not None and not 0 <= position - 5 + at < own]
        assert [one for one in faint if (one or "").startswith("·t")] == pale


def test_it_is_saved_as_svg_png_and_pdf(tmp_path: Path) -> None:
    picture = Figure1(numbers())
    for name, begins in (("a.svg", b"<svg"), ("b.PNG", b"\x89PNG"), ("c.pdf", b"%PDF")):
        path = picture.save(tmp_path / name)
        first = path.read_bytes()
        assert first.startswith(begins)
        # A PDF of two fonts lists them in any order.
        assert path.suffix == ".pdf" or picture.save(path).read_bytes() == first
    saved = (tmp_path / "a.svg").read_text()
    assert "currentColor" not in saved
    assert 'fill="#ffffff"' in saved
    for name in ("a.jpg", "svg", ""):
        with pytest.raises(OptionError, match="must end in"):
            picture.save(tmp_path / name)
    with pytest.raises(StoreFailed):
        picture.save(tmp_path / "a.svg" / "b.svg")


def test_python_gives_the_picture_of_a_prompt() -> None:
    picture = ms.figure1("handmade:planted", "the cat sat on the", 1, position=-1)  # type: ignore[arg-type]
    assert [one["memory"] for one in picture.numbers["memories"]] == ["L1.M4"]
    assert picture._repr_html_().startswith("<svg")
    assert "layer 1" in repr(picture)
    assert json.loads(json.dumps(picture.numbers, allow_nan=False)) == picture.numbers
