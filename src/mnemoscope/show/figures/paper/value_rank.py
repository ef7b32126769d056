"""Figure 5: the rank that values give to their targets, as one box per layer (section 4 of the paper)."""

from typing import Any

import altair as alt

from mnemoscope.questions.paper.value_rank import QUANTILES
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Drawing, Figure, Panel, chart, ends, layer_axis, over_all, record, tooltip
from mnemoscope.show.figures.colours import BLUE, GREY
from mnemoscope.show.figures.panels import panel


def figure(answer: Answer) -> Figure:
    rows: list[dict[str, Any]] = []
    for layer in answer.layers:
        quantiles = {name: row for name in QUANTILES if (row := answer.at(name, layer)) is not None}
        if len(quantiles) < len(QUANTILES):
            continue
        ranks = {name: row.value for name, row in quantiles.items()}
        shown = {f"{name}_drawn": rank + 1 for name, rank in ranks.items()}
        quartiles = f"{quantiles['q25'].text} to {quantiles['q75'].text}"
        rows.append({**record(quantiles["q50"], "median"), **ranks, **shown, "quartiles": quartiles})
    return Figure(
        (_boxes(rows),),
        "Rank of the target in the value's distribution (0 is first; drawn as rank + 1 on a logarithmic scale): the box"
        " holds the middle half of the memories, the line in it is the median, the whiskers hold 90 %, the dots are the"
        " extremes.",
        f"Median rank of the target: {ends(answer, 'q50')}. The target is among the first 100 tokens for"
        f" {over_all(answer, 'within_100')} of memories.",
        "A low box means that values favour {what_follows} their triggers, even where another token is first.",
        "Ranks grow with the vocabulary, and a short text makes the target a matter of luck: compare layers.",
    )


def _boxes(rows: list[dict[str, Any]]) -> Panel:
    name = "value_rank"
    scale = {"type": "log"}
    axis = {"format": "~s", "values": [10**power for power in range(7)]}

    def vertical(quantile: str) -> alt.Y:
        return alt.Y(f"{quantile}_drawn:Q", title="rank of the target + 1", scale=scale, axis=axis)

    def draw() -> Drawing:
        place = chart(name).encode(x=layer_axis(padding=0.45))
        tips = tooltip(
            {"layer:N": "layer", "said:N": "median rank", "quartiles:N": "middle half", "count:N": "memories"}
        )
        dots = [
            place.mark_point(size=12, filled=True, color=GREY).encode(y=vertical(quantile), tooltip=tips)
            for quantile in ("q00", "q100")
        ]
        return alt.layer(
            place.mark_rule(color=GREY, strokeWidth=1.5).encode(y=vertical("q05"), y2=alt.Y2("q95_drawn:Q")),
            place.mark_bar(color=BLUE, opacity=0.75).encode(y=vertical("q25"), y2=alt.Y2("q75_drawn:Q"), tooltip=tips),
            place.mark_tick(color="currentColor", thickness=2).encode(y=vertical("q50"), tooltip=tips),
            *dots,
        )

    return panel(draw, {name: rows}, title="rank that the value gives to the memory's target")
