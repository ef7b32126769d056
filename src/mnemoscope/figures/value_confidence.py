"""Figure 6: whether confident values are right (section 4 of the paper)."""

from collections.abc import Mapping
from typing import Any

import altair as alt

from mnemoscope.figures.chart import (
    BLUE,
    DASHED,
    ORANGE,
    PERCENT,
    Figure,
    Panel,
    Series,
    chart,
    record,
)
from mnemoscope.figures.panels import error_bars, lines, panel
from mnemoscope.figures.readings import said
from mnemoscope.formatting import DASH, number, percent
from mnemoscope.questions.answered import Answered

DECILES = tuple(f"decile_{index}" for index in range(10))


def figure(answers: Mapping[str, Answered]) -> Figure:
    """Figure 6: agreement by decile of the value's largest probability; how confident values are in each layer."""
    answer = answers["value_confidence"]
    rows = []
    for index, name in enumerate(DECILES):
        row = answer.total(name)
        if row is not None:
            low, high = row.own.get("lowest"), row.own.get("highest")
            bounds = DASH if low is None or high is None else f"{number(low)} to {number(high)}"
            rows.append({**record(row, "agreement"), "decile": index + 1, "bounds": bounds})
    panels = [_deciles(rows)]
    series = [Series("max_probability", BLUE), Series("max_probability_best", ORANGE, DASHED)]
    if answer.rows("max_probability"):
        panels.append(
            lines(
                answer,
                series,
                name="value_confidence_layers",
                title="largest probability of the values of a layer",
                y="probability (log scale)",
                format="~g",
                log=True,
            )
        )
    first, last = answer.total(DECILES[0]), answer.total(DECILES[-1])
    reading = "There are no deciles: too few memories have a target."
    if first is not None and last is not None:
        reading = (
            f"Agreement is {said(first, with_interval=True)} in the least confident tenth of the memories and"
            f" {said(last, with_interval=True)} in the most confident."
        )
    return Figure(
        tuple(panels),
        "All memories with a target, sorted by the largest probability of their value and cut into ten equal parts:"
        " share whose value ranks its target first. Because the largest probability grows with the norm of the value,"
        " the table below has the norm beside it.",
        reading,
    )


def _deciles(rows: list[dict[str, Any]]) -> Panel:
    name = "value_confidence"
    place = chart(name).encode(
        x=alt.X("decile:O", title="tenth of the memories by largest probability (10: most confident)").axis(
            labelAngle=0
        )
    )
    bars = place.mark_bar(color=BLUE).encode(
        y=alt.Y("value:Q", title="agreement", axis=alt.Axis(format=PERCENT)),
        tooltip=[
            alt.Tooltip("decile:O", title="tenth"),
            alt.Tooltip("bounds:N", title="largest probability"),
            alt.Tooltip("said:N", title="agreement"),
            alt.Tooltip("interval:N", title="95 % interval"),
            alt.Tooltip("count:N", title="memories"),
        ],
    )
    whole = alt.layer(bars, error_bars(name, x="decile:O"))
    return panel(whole, {name: rows}, title="agreement by confidence of the value")


def top_hundred(answer: Answered) -> str:
    """What the 100 most confident values do, in a sentence; empty where there is no answer."""
    upper, agreeing, share = (
        answer.total(name) for name in ("top100_upper_layers", "top100_with_trigger", "top100_trigger_share")
    )
    if upper is None or agreeing is None:
        return ""
    rest = "" if share is None else f" (on average {percent(share.value)} of their triggers)"
    return (
        f"Of the {upper.count:,} most confident values {upper.value * upper.count:,.0f} lie in the upper layers, and"
        f" {agreeing.value * agreeing.count:,.0f} have a trigger that is followed by what they rank first{rest}."
    )
