"""Panels of figures: lines with intervals over the layers, stacked shares, their legends, and their composition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any, Literal

import altair as alt

from mnemoscope.foundation.formatting import show_controls
from mnemoscope.foundation.words import in_words
from mnemoscope.questions.question import Answer, Row
from mnemoscope.show.figures.chart import (
    HEIGHT,
    PERCENT,
    STYLE,
    WIDTH,
    Data,
    Drawing,
    Figure,
    Panel,
    Series,
    chart,
    layer_axis,
    record,
    round_significant,
    tooltip,
)
from mnemoscope.show.figures.stated import Stated, is_stated, stated_marks, stated_rows

APART: Literal["independent"] = "independent"
TITLE = 72
"""Characters per line of a figure's title, as wide as its panels."""
SMALL_WIDTH, SMALL_HEIGHT = 280, 120
"""The size of a panel on a card."""
NARROW_WIDTH, NARROW_HEIGHT, NARROW_TITLE = 270, 190, 46
"""Of a panel on a phone; the title in characters per line."""


def lines(
    answer: Answer,
    series: Sequence[Series],
    *,
    name: str,
    title: str,
    y: str,
    format: str = PERCENT,
    log: bool = False,
    bands: Mapping[str, tuple[str, str]] | None = None,
    zero: bool = False,
    dodge: bool = False,
    least: int = 0,
    stated: Sequence[Stated] = (),
) -> tuple[Panel, ...]:
    """One line per series over the layers, with 95 % intervals as bars; none without numbers. The band is the interval,
    or the two numbers that `bands` names. With `dodge` series stand side by side, without bands. Numbers of fewer than
    `least` cases are left out. Behind them, what the paper has `stated`.
    """
    if not (shown := _available(answer, series, least)):
        return ()
    rows = [record(row, one.title) for one in shown for row in answer.rows(one.name) if row.count >= least]
    rows += _gaps(answer, shown, rows)
    if log:
        rows = [_above_zero(row) for row in rows]
    _add_bands(rows, answer, shown, {} if dodge else bands)
    behind = stated_rows(stated, answer, name)

    def vertical(field: str) -> alt.Y:
        scaled: Data = {"type": "log"} if log else {"zero": True}
        ticks: Data = {"tickCount": 3} if log else {}
        return alt.Y(f"{field}:Q", title=in_words(y, answer.words), scale=scaled, axis={"format": format, **ticks})

    def draw() -> Drawing:
        picked = _selection(name)
        faint, clear = _highlight(picked, 0.18, 0.02), _highlight(picked, 1.0, 0.12)
        place = chart(name).encode(x=layer_axis(), color=_colours(shown, stroke=True))
        dashes = alt.StrokeDash("series:N", **_scale(shown, [list(one.dash) for one in shown], stroke=True))
        if dodge:
            place = place.encode(xOffset=_beside(shown, len(answer.layers)))
        bars = place.transform_filter("isValid(datum.low) && isValid(datum.high)")
        line = place.mark_line(strokeWidth=2, invalid="break-paths-show-domains")
        points = place.transform_filter("isValid(datum.value)").mark_point(filled=True, size=45)
        layers = [
            line.encode(y=vertical("value"), strokeDash=dashes, opacity=clear).add_params(picked),
            points.encode(y=vertical("value"), opacity=clear, tooltip=tooltip()),
        ]
        # A mark without data would break the shared scale.
        if any(row["low"] is not None and row["high"] is not None for row in rows):
            rule = bars.mark_rule(strokeWidth=1.5)
            layers.insert(0, rule.encode(y=vertical("low"), y2=alt.Y2("high:Q"), opacity=clear))
        if any(row["from"] is not None and row["to"] is not None for row in rows):
            area = place.mark_area(invalid="break-paths-show-domains")
            layers.insert(0, area.encode(y=vertical("from"), y2=alt.Y2("to:Q"), opacity=faint))
        if zero:
            layers.insert(0, chart("zero").mark_rule(color="currentColor", opacity=0.5).encode(y=vertical("zero")))
        return alt.layer(*stated_marks(behind, answer, stated, vertical), *layers)

    return (panel(draw, {name: rows, "zero": [{"zero": 0}], **behind}, title=in_words(title, answer.words)),)


def _available(answer: Answer, series: Sequence[Series], least: int = 0) -> list[Series]:
    return [
        replace(one, title=in_words(one.title or answer.label(one.name), answer.words))
        for one in series
        if any(row.count >= least for row in answer.rows(one.name))
    ]


def _colours(series: Sequence[Series], *, stroke: bool = False) -> alt.Color:
    return alt.Color("series:N", **_scale(series, [one.colour for one in series], stroke=stroke))


def _scale(series: Sequence[Series], values: Sequence[Any], *, stroke: bool) -> Data:
    """One of the values per series; the legend is above the chart, in one row if it fits."""
    labels = [one.title for one in series]
    # Equal legends of all marks are merged into one; opaque, although bands are faint.
    legend = {
        "orient": "top",
        "title": None,
        "columns": 4 if sum(len(one) + 6 for one in labels) <= 90 else 2,
        "labelLimit": 0,
        "symbolType": "stroke" if stroke else "square",
        "symbolOpacity": 1,
        "offset": 8,
    }
    return {"scale": {"domain": labels, "range": values}, "legend": legend, "sort": labels}


def _selection(name: str) -> Any:
    """A click on the legend dims the other series; `name` is unique per chart."""
    return alt.selection_point(name=name, fields=["series"], bind="legend")


def _highlight(picked: Any, normal: float, dimmed: float) -> alt.OpacityValue:
    return alt.OpacityValue(**alt.condition(picked, alt.value(normal), alt.value(dimmed)))


def _beside(series: Sequence[Series], layers: int) -> alt.XOffset:
    """Offsets of the series around the middle of a layer's band, at most 18 units and 40 % of the band in all."""
    reach = min(0.4, 18 * max(1, layers) / WIDTH)
    # The scale spans the whole band; places that no series has keep the points near the middle.
    free = [" " * place for place in range(round(max(1, len(series) - 1) * (1 / reach - 1) / 2))]
    domain = [*free, *(one.title for one in series), *(f"{one}-" for one in free)]
    return alt.XOffset("series:N", scale={"type": "point", "domain": domain})


def _gaps(answer: Answer, series: Sequence[Series], rows: Sequence[Mapping[str, Any]]) -> list[Data]:
    """A row without a value where a series has none, so that the line is interrupted at that layer."""
    drawn = {(row["series"], row["layer"]) for row in rows}
    return [
        {"layer": layer, "series": one.title, "value": None, "low": None, "high": None}
        for one in series
        for layer in answer.layers
        if (one.title, layer) not in drawn
    ]


def _above_zero(row: Data) -> Data:
    """The row without values that a logarithmic scale cannot show."""
    if row["value"] is None or row["value"] <= 0:
        return {**row, "value": None, "low": None, "high": None}
    return row if row["low"] is None or row["low"] > 0 else {**row, "low": None, "high": None}


def _add_bands(
    rows: Sequence[Data],
    answer: Answer,
    series: Sequence[Series],
    bands: Mapping[str, tuple[str, str]] | None,
) -> None:
    names = {one.title: one.name for one in series}
    for row in rows:
        row["from"], row["to"] = row["low"], row["high"]
        if bands is not None:
            ends = bands.get(names[row["series"]])
            numbers = (None, None) if ends is None else tuple(answer.at(end, row["layer"]) for end in ends)
            row["from"], row["to"] = (None if end is None else round_significant(end.value) for end in numbers)


def stack_shares(
    answer: Answer,
    series: Sequence[Series],
    edges: Sequence[Row],
    *,
    name: str,
    title: str,
    stated: Sequence[Stated] = (),
) -> Panel:
    """Shares that sum to one, stacked per layer; `edges` are the 95 % intervals of the borders between them."""
    shown = _available(answer, series)
    rows, height = [], dict.fromkeys(answer.layers, 0.0)
    for one in shown:
        for row in answer.rows(one.name):
            assert row.layer is not None
            below = height[row.layer]
            height[row.layer] = below + row.value
            place = {"from": round_significant(below), "to": round_significant(below + row.value)}
            rows.append(record(row, one.title) | place)
    names = list(dict.fromkeys(row.name for row in edges if row.low is not None))
    borders = {
        f"{name}_{border}": [record(row, answer.label(border)) for row in edges if row.name == border]
        for border in names
    }

    over = stated_rows(stated, answer, name)

    def vertical(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="share", axis={"format": PERCENT}, scale={"domain": [0, 1]})

    def draw() -> Drawing:
        bars = (
            chart(name)
            .mark_bar()
            .encode(
                x=layer_axis(padding=0.1),
                y=vertical("from"),
                y2=alt.Y2("to:Q"),
                color=_colours(shown),
                opacity=_highlight(picked := _selection(name), 1.0, 0.15),
                tooltip=tooltip(),
            )
            .add_params(picked)
        )
        # Side by side, since borders may be close together; within the column, however narrow.
        step = min(0.3, 9 * len(answer.layers) / WIDTH)
        places = [0.5 + step * (index - (len(names) - 1) / 2) for index in range(len(names))]
        marks = [error_bars(border, at=at, reach=0.4 * step) for border, at in zip(borders, places, strict=True)]
        return alt.layer(bars, *stated_marks(over, answer, stated, vertical, 0.1), *marks)

    return panel(draw, {name: rows, **borders, **over}, title=title)


def error_bars(name: str, *, x: str = "layer", at: float = 0.5, reach: float = 0.06) -> Drawing:
    """95 % intervals of the rows `name` as bars with ends, in the text's colour, at the part `at` of their column; the
    ends reach as far to both sides.
    """
    place = chart(name).transform_filter("isValid(datum.low) && isValid(datum.high)")
    rule = place.mark_rule(strokeWidth=1.5, color="currentColor")
    across = {"x": alt.X(f"{x}:O", bandPosition=at - reach), "x2": alt.X2(x, bandPosition=at + reach)}
    ends = [rule.encode(y=alt.Y(f"{end}:Q"), **across) for end in ("low", "high")]
    middle = rule.encode(x=alt.X(f"{x}:O", bandPosition=at), y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    return alt.layer(middle, *ends)


def panel(draw: Callable[[], Drawing], rows: Mapping[str, Sequence[Data]], *, title: str) -> Panel:
    return Panel(lambda: draw().properties(width=WIDTH, height=HEIGHT, title=title), rows)


def small_specification(answer: Answer, figure: Figure) -> Data:
    first = figure.panels[0]
    small = Panel(lambda: first.draw().properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title=""), first.rows)
    whole = specification(answer, replace(figure, panels=(small,)), about="")
    axis = whole["config"]["axis"] | {"labelFontSize": 11, "tickCount": 3}
    legend = whole["config"]["legend"] | {"labelFontSize": 11, "symbolSize": 90, "columnPadding": 16}
    config = whole["config"] | {"axis": axis, "axisY": {"minExtent": 30}, "legend": legend}
    narrow: Data = _narrow_part({name: whole[name] for name in whole if name != "datasets"}, columns=2)
    return narrow | {"config": config, "datasets": whole["datasets"]}


def narrow_specification(answer: Answer, figure: Figure) -> Data:
    """The figure for a window of 390 pixels."""
    whole = specification(answer, figure, about="")
    for panel in whole["vconcat"]:
        panel |= {"width": NARROW_WIDTH, "height": NARROW_HEIGHT, "title": wrap(panel["title"], NARROW_TITLE)}
    config = whole["config"] | {"legend": whole["config"]["legend"] | {"labelFontSize": 10, "symbolSize": 90}}
    return whole | {"vconcat": _narrow_part(whole["vconcat"], columns=1), "config": config}


def _narrow_part(part: Any, *, columns: int) -> Any:
    """A (part of a) specification with legends of so many columns; of two: with untitled axes, without the paper's."""
    if isinstance(part, list):
        return [_narrow_part(one, columns=columns) for one in part if columns < 2 or not is_stated(one)]
    if not isinstance(part, dict):
        return part
    narrow = {name: _narrow_part(one, columns=columns) for name, one in part.items()}
    limit = {"labelLimit": SMALL_WIDTH // 2} if columns == 2 else {}
    for name, one in narrow.get("encoding", {}).items():
        if name in ("x", "y") and columns == 2:
            narrow["encoding"][name] = one | {"title": None}
        elif isinstance(one, dict) and one.get("legend"):
            narrow["encoding"][name] = one | {"legend": one["legend"] | {"columns": columns} | limit}
    return narrow


def specification(answer: Answer, figure: Figure, *, about: str) -> Data:
    """The figure as Vega-Lite: its panels in a column, in one style; `about` (model, text) is its subtitle."""
    whole = alt.vconcat(*(panel.draw() for panel in figure.panels), spacing=28)
    apart = whole.resolve_scale(color=APART, opacity=APART, strokeDash=APART, xOffset=APART)
    bars = f"; thin bars: 95 % interval {answer.interval}" if figure.intervals else ""
    title = {
        "text": wrap(f"{answer.question.paper.figure}: {answer.question.paper.question}", TITLE),
        # A control code, which the name of a model or a text may hold, makes the renderer abort the process.
        "subtitle": [show_controls(line) for line in (about, f"layers counted from 0{bars}")],
        "fontSize": 17,
        "subtitleFontSize": 12,
        "offset": 14,
    }
    return {
        # Altair validated the parts; validating the whole doubles the time, and a test does it.
        **apart.to_dict(validate=False),
        "title": title,
        "description": figure.reading,
        "background": "white",
        "padding": 10,
        "config": STYLE,
        "datasets": {name: list(rows) for panel in figure.panels for name, rows in panel.rows.items()},
    }
