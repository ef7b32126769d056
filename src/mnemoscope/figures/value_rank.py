"""Figure 5: how high values rank what follows (section 4 of the paper)."""

from collections.abc import Mapping
from typing import Any

import altair as alt

from mnemoscope.figures.chart import (
    BLUE,
    GREY,
    Figure,
    Panel,
    chart,
    layer_axis,
    record,
)
from mnemoscope.figures.panels import panel
from mnemoscope.figures.readings import ends, over_all
from mnemoscope.questions.answered import Answered

QUANTILES = ("q00", "q05", "q25", "q50", "q75", "q95", "q100")


def figure(answers: Mapping[str, Answered]) -> Figure:
    """Figure 5: the rank that values give to their targets, as a box per layer."""
    answer = answers["value_rank"]
    rows: list[dict[str, Any]] = []
    for layer in answer.layers:
        found = {name: answer.at(name, layer) for name in QUANTILES}
        if any(row is None for row in found.values()):
            continue
        row = {name: one.value for name, one in found.items() if one is not None}
        shown = {f"{name}_drawn": value + 1 for name, value in row.items()}
        middle = found["q50"]
        assert middle is not None
        quartiles = f"{row['q25']:,.0f} to {row['q75']:,.0f}"
        rows.append({**record(middle, "median"), **row, **shown, "quartiles": quartiles})
    return Figure(
        (_boxes(rows),),
        "Rank of the target in the value's distribution (0 is first; drawn as rank + 1 on a logarithmic scale): the box"
        " holds the middle half of the memories, the line in it is the median, the whiskers hold 90 %, the dots are the"
        " extremes.",
        f"Median rank of the target: {ends(answer, 'q50')}. The target is among the first 100 tokens for"
        f" {over_all(answer, 'within_100')} of memories.",
    )


def _boxes(rows: list[dict[str, Any]]) -> Panel:
    name = "value_rank"
    scale = alt.Scale(type="log")
    axis = alt.Axis(format="~s", values=[10**power for power in range(7)])

    def vertical(quantile: str) -> alt.Y:
        return alt.Y(f"{quantile}_drawn:Q", title="rank of the target + 1", scale=scale, axis=axis)

    place = chart(name).encode(x=layer_axis(padding=0.45))
    saying = [
        alt.Tooltip("layer:N", title="layer"),
        alt.Tooltip("said:N", title="median rank"),
        alt.Tooltip("quartiles:N", title="middle half"),
        alt.Tooltip("count:N", title="memories"),
    ]
    dots = [
        place.mark_point(size=12, filled=True, color=GREY).encode(y=vertical(quantile), tooltip=saying)
        for quantile in ("q00", "q100")
    ]
    whole = alt.layer(
        place.mark_rule(color=GREY, strokeWidth=1.5).encode(y=vertical("q05"), y2="q95_drawn:Q"),
        place.mark_bar(color=BLUE, opacity=0.75).encode(y=vertical("q25"), y2="q75_drawn:Q", tooltip=saying),
        place.mark_tick(color="currentColor", thickness=2).encode(y=vertical("q50"), tooltip=saying),
        *dots,
    )
    return panel(whole, {name: rows}, title="rank that the value gives to the memory's target")
