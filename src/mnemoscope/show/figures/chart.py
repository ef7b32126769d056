"""The common parts of figures: style, series, axes, tooltips (Vega-Lite), and sentences about lines.

Text and axes take the colour of the surrounding text. Every series also differs in its dashes or its place, never in
colour alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from mnemoscope.foundation.formatting import DASH, Table
from mnemoscope.questions.question import EVERY, Answer, Row
from mnemoscope.show.figures.colours import SOLID

WIDTH, HEIGHT = 600, 260
PERCENT = "~%"
TOOLTIP = {"layer:N": "layer", "series:N": "what", "said:N": "value", "interval:N": "95 % interval", "count:N": "cases"}

Data = dict[str, Any]
"""An object of JSON: a row of a chart's data, or a part of a specification."""

STYLE: Data = {
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
    # The same for every panel, so that panels are aligned.
    "axisY": {"minExtent": 44},
    "legend": {"labelColor": "currentColor", "labelFontSize": 12, "symbolStrokeWidth": 2, "symbolSize": 260},
    "view": {"stroke": None},
}
"""The Vega-Lite config of every figure."""

Drawing = Any
"""A chart of Altair; its class depends on how it was composed."""


@dataclass(frozen=True)
class Panel:
    """One chart and its data rows by name, kept apart since Altair copies embedded data. `draw` is slow."""

    draw: Callable[[], Drawing]
    rows: Mapping[str, Sequence[Data]]


@dataclass(frozen=True)
class Cell:
    text: str
    aside: str = ""


def cell(row: Row | None) -> Cell:
    return Cell(DASH) if row is None else Cell(row.text, row.interval)


@dataclass(frozen=True)
class Figure:
    """A question's panels, how to read them, their results in words, what these mean, and why another model may differ
    from the paper's. `tables` hold data that the answer lacks.
    """

    panels: tuple[Panel, ...]
    axes: str
    reading: str
    means: str
    differs: str
    tables: tuple[Table, ...] = ()

    @property
    def intervals(self) -> bool:
        rows = [row for panel in self.panels for rows in panel.rows.values() for row in rows]
        return any(row.get("low") is not None and row.get("high") is not None for row in rows)


@dataclass(frozen=True)
class Series:
    """One line, band or slice: its number, colour and dashes; `title` replaces the number's label."""

    name: str
    colour: str
    dash: tuple[int, ...] = SOLID
    title: str = ""


def record(row: Row, series: str) -> Data:
    numbers = {name: round_significant(getattr(row, name)) for name in ("value", "low", "high")}
    texts = {"said": row.text, "interval": row.interval or DASH, "count": f"{row.count:,}"}
    return {"layer": row.layer, "series": series, **numbers, **texts}


def round_significant(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def chart(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name))


def layer_axis(*, padding: float = 0.0, band: float = 0.5) -> alt.X:
    """A band for each layer; marks stand at the part `band` of it, 0 is its left end."""
    scale = {"type": "band", "paddingInner": padding, "paddingOuter": padding / 2}
    # Every other label goes until there is room: many layers stay readable in a small picture, too.
    axis = {"labelAngle": 0, "labelOverlap": "parity", "labelSeparation": 9}
    return alt.X("layer:O", title="layer (counted from 0)", axis=axis, scale=scale, bandPosition=band)


def tooltip(titles: Mapping[str, str] = TOOLTIP) -> list[alt.Tooltip]:
    return [alt.Tooltip(field, title=title) for field, title in titles.items()]


def over_all(answer: Answer, name: str) -> str:
    """The total and its interval: `34 % [33 %, 35 %]`; `an unknown share` without a total. Of memories that do not copy
    what they see, beside it the one over all.
    """
    row, every = answer.total(name), answer.total(EVERY + name)
    beside = "" if every is None else f" ({every.text} over all memories, also those that copy)"
    return "an unknown share" if row is None else row.text_and_interval + beside


def ends(answer: Answer, name: str) -> str:
    """`3 % in layer 0 and 12 % in layer 7 (most in layer 5: 14 %)`; an extreme at an end is not repeated."""
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
