"""What all figures have in common: style, series, axes, what a mark says (Vega-Lite), and how lines are read.

Colours are of middle lightness, so that one drawing is readable on white and on black; lines of text and axes take the
colour of the text around them. Every series also differs in its dashes or its place, never in colour alone. The
drawing library is loaded by what makes a chart: it takes half a second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mnemoscope.foundation.formatting import DASH
from mnemoscope.questions.question import Answer, Row

if TYPE_CHECKING:
    import altair as alt

BLUE, ORANGE, GREEN, PURPLE, GREY = "#3b82d6", "#d9730d", "#2c9a66", "#9a6bdb", "#848b96"
PATTERN_COLOURS = (
    ("shallow", "shallow", BLUE),
    ("semantic", "semantic", ORANGE),
    ("both", "shallow and semantic", PURPLE),
    ("none", "no pattern", GREY),
)
"""The kinds of pattern that a trigger may fall under, in words and in the colours of Figure 2."""
SOLID: tuple[int, ...] = (1, 0)
DASHED: tuple[int, ...] = (6, 3)
DOTTED: tuple[int, ...] = (2, 3)

WIDTH, HEIGHT = 600, 260
LAYER_AXIS = "layer (counted from 0)"
PERCENT = "~%"
TOOLTIP = {"layer:N": "layer", "series:N": "what", "said:N": "value", "interval:N": "95 % interval", "count:N": "cases"}

STYLE: dict[str, Any] = {
    "font": "sans-serif",
    "title": {
        "anchor": "start",
        "color": "currentColor",
        "subtitleColor": "currentColor",
        "fontWeight": "normal",
        "fontSize": 14,
    },
    "axis": {
        "labelColor": "currentColor",
        "labelFontSize": 12,
        "titleColor": "currentColor",
        "titleFontWeight": "normal",
        "titleFontSize": 13,
        "titlePadding": 8,
        "gridColor": "currentColor",
        "gridOpacity": 0.13,
        "domainColor": "currentColor",
        "domainOpacity": 0.5,
        "tickColor": "currentColor",
        "tickOpacity": 0.5,
    },
    "axisX": {"grid": False},
    # The same for every panel, so that panels stand exactly below one another.
    "axisY": {"minExtent": 44},
    "legend": {"labelColor": "currentColor", "labelFontSize": 12, "symbolStrokeWidth": 2, "symbolSize": 260},
    "view": {"stroke": None},
}
"""Vega-Lite's config of every figure."""

Drawing = Any
"""A chart of Altair; its classes differ by how a chart was put together."""


@dataclass(frozen=True)
class Panel:
    """One chart of a figure, and the rows behind it by name, as its marks use them: Altair copies what it holds.

    `draw` puts the chart together, which takes longer than all the rest of a figure; not every page shows it.
    """

    draw: Callable[[], Drawing]
    rows: Mapping[str, Sequence[dict[str, Any]]]


@dataclass(frozen=True)
class Cell:
    """A number as text, and its interval in smaller print."""

    text: str
    aside: str = ""


def cell(row: Row | None) -> Cell:
    """The row's value and interval; a dash where there is none."""
    return Cell(DASH) if row is None else Cell(row.text, row.interval)


@dataclass(frozen=True)
class Table:
    """A table with a header of its own."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """What a question's figure shows: its panels, how to read them, and what they say here, in words with numbers.

    `tables` hold what the panels show where that is neither a number by layer nor a total.
    """

    panels: tuple[Panel, ...]
    axes: str
    reading: str
    tables: tuple[Table, ...] = ()

    @property
    def intervals(self) -> bool:
        """Whether any 95 % interval is drawn."""
        rows = [row for panel in self.panels for rows in panel.rows.values() for row in rows]
        return any(row.get("low") is not None and row.get("high") is not None for row in rows)


@dataclass(frozen=True)
class Series:
    """One line, band or slice: the number behind it, colour, dashes; `title` instead of the label that is declared."""

    name: str
    colour: str
    dash: tuple[int, ...] = SOLID
    title: str = ""


def record(row: Row, series: str) -> dict[str, Any]:
    """One number as the data of a mark, with what its tooltip says."""
    return {
        "layer": row.layer,
        "series": series,
        "value": round_significant(row.value),
        "low": round_significant(row.low),
        "high": round_significant(row.high),
        "said": row.text,
        "interval": row.interval or DASH,
        "count": f"{row.count:,}",
    }


def round_significant(value: float | None) -> float | None:
    """Six figures are more than a picture shows."""
    return None if value is None else float(f"{value:.6g}")


def chart(name: str) -> "alt.Chart":
    """A chart of the rows of that name."""
    import altair as alt

    return alt.Chart(alt.NamedData(name))


def layer_axis(*, padding: float | None = None) -> "alt.X":
    """The horizontal axis of nearly every figure; a layer that was not mined has no place on it."""
    import altair as alt

    scale = {} if padding is None else {"paddingInner": padding, "paddingOuter": padding / 2}
    return alt.X("layer:O", title=LAYER_AXIS, axis={"labelAngle": 0, "labelOverlap": "greedy"}, scale=scale)


def tooltip(titles: Mapping[str, str] = TOOLTIP) -> "list[alt.Tooltip]":
    """What a mark says when it is pointed at: fields of its row, and what they are called."""
    import altair as alt

    return [alt.Tooltip(field, title=title) for field, title in titles.items()]


def over_all(answer: Answer, name: str) -> str:
    """The total and its interval: `34 % [33 %, 35 %]`; `an unknown share` where there is none."""
    row = answer.total(name)
    return "an unknown share" if row is None else row.text_and_interval


def ends(answer: Answer, name: str) -> str:
    """`3 % in layer 0 and 12 % in layer 7 (most in layer 5: 14 %)`: the most is left out where it is an end."""
    rows = answer.rows(name)
    if not rows:
        return "no number"
    first, last = rows[0], rows[-1]
    if first is last:
        return f"{first.text} in layer {first.layer}"
    extremes = ("most", max(rows, key=lambda row: row.value)), ("least", min(rows, key=lambda row: row.value))
    inner = [
        f"{word} in layer {row.layer}: {row.text}"
        for word, row in extremes
        if row not in (first, last) and row.value not in (first.value, last.value)
    ]
    aside = f" ({', '.join(inner)})" if inner else ""
    return f"{first.text} in layer {first.layer} and {last.text} in layer {last.layer}{aside}"
