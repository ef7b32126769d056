"""What all figures have in common: style, series, axes, legends, and what a mark says (Vega-Lite).

Colours are of middle lightness, so that one drawing is readable on white and on black; lines of text and axes take the
colour of the text around them. Every series also differs in its dashes or its place, never in colour alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from mnemoscope.formatting import DASH, interval, spoken
from mnemoscope.questions.answered import Answered, Row

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#3b82d6", "#d9730d", "#2c9a66", "#9a6bdb", "#dd524c", "#848b96"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)
SOLID: tuple[int, ...] = (1, 0)
DASHED: tuple[int, ...] = (6, 3)
DOTTED: tuple[int, ...] = (2, 3)

WIDTH, HEIGHT = 600, 260
LAYER_AXIS = "layer (counted from 0)"
PERCENT = "~%"

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
    """One chart of a figure, and the rows behind it by name, as its marks use them: Altair copies what it holds."""

    chart: Drawing
    rows: Mapping[str, Sequence[dict[str, Any]]]


@dataclass(frozen=True)
class Figure:
    """What a question's figure shows: its panels, how to read them, and what they say here, in words with numbers."""

    panels: tuple[Panel, ...]
    axes: str
    reading: str

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
        "value": short(row.value),
        "low": short(row.low),
        "high": short(row.high),
        "said": spoken(row.value, row.form),
        "interval": interval(row.low, row.high, row.form) or DASH,
        "count": f"{row.count:,}",
    }


def short(value: float | None) -> float | None:
    """Six figures are more than a picture shows."""
    return None if value is None else float(f"{value:.6g}")


def present(answer: Answered, series: Sequence[Series]) -> list[Series]:
    """Those of the series that the answer has numbers for, each with a title for the legend."""
    return [replace(one, title=one.title or answer.label(one.name)) for one in series if answer.rows(one.name)]


def records(answer: Answered, series: Sequence[Series]) -> list[dict[str, Any]]:
    """The numbers of every series, by layer."""
    return [record(row, one.title) for one in series for row in answer.rows(one.name)]


def chart(name: str) -> alt.Chart:
    """A chart of the rows of that name."""
    return alt.Chart(alt.NamedData(name))


def layer_axis(*, padding: float | None = None) -> alt.X:
    """The horizontal axis of nearly every figure; a layer that was not mined has no place on it."""
    scale = alt.Scale() if padding is None else alt.Scale(paddingInner=padding, paddingOuter=padding / 2)
    return alt.X("layer:O", title=LAYER_AXIS, axis=alt.Axis(labelAngle=0, labelOverlap="greedy"), scale=scale)


def tooltip(first: str = "layer") -> list[alt.Tooltip]:
    """What a mark says when it is pointed at."""
    titles = {first: first, "series": "what", "said": "value", "interval": "95 % interval", "count": "cases"}
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]


def colours(series: Sequence[Series], *, stroke: bool = False) -> alt.Color:
    """The colour of each series, with a legend of squares or of strokes."""
    labels, chosen = [one.title for one in series], [one.colour for one in series]
    shown = _legend(labels, stroke=stroke)
    return alt.Color("series:N", scale=alt.Scale(domain=labels, range=chosen), legend=shown, sort=labels)


def dashes(series: Sequence[Series]) -> alt.StrokeDash:
    """The dashes of each series, in the same legend as its colour."""
    labels, chosen = [one.title for one in series], [list(one.dash) for one in series]
    shown = _legend(labels, stroke=True)
    return alt.StrokeDash("series:N", scale=alt.Scale(domain=labels, range=chosen), legend=shown, sort=labels)


def _legend(labels: Sequence[str], *, stroke: bool) -> alt.Legend:
    """Above the chart; in one row where that fits."""
    columns = 4 if sum(len(one) + 6 for one in labels) <= 90 else 2
    symbol = "stroke" if stroke else "square"
    # The same for every mark of a chart, or the legends would not become one; clear, although bands are faint.
    return alt.Legend(
        orient="top", title=None, columns=columns, labelLimit=0, symbolType=symbol, symbolOpacity=1, offset=8
    )


def chosen(name: str) -> Any:
    """A click on the legend dims the other series; `name` is the chart's own name for it."""
    return alt.selection_point(name=name, fields=["series"], bind="legend")


def clear_of(picked: Any, normal: float, dimmed: float) -> Any:
    """The opacity of a series, and of the others once one was picked in the legend."""
    return alt.condition(picked, alt.value(normal), alt.value(dimmed))
