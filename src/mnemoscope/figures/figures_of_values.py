"""Figures 4, 5 and 6: what values predict, and whether confident ones are right (section 4 of the paper)."""

from collections.abc import Mapping
from typing import Any

import altair as alt

from mnemoscope.figures.answered import Answered
from mnemoscope.figures.chart import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    PERCENT,
    PURPLE,
    Figure,
    Panel,
    Series,
    chart,
    layer_axis,
    record,
)
from mnemoscope.figures.panels import error_bars, lines, panel
from mnemoscope.figures.readings import ends, over_all, said
from mnemoscope.figures.words import DASH, number, percent

AGREEMENT = (
    Series("agreement", BLUE),
    Series("shuffled_targets", ORANGE, DASHED),
    Series("most_frequent_token", GREY, DASHED),
    Series("chance", PURPLE, DOTTED),
)
QUANTILES = ("q00", "q05", "q25", "q50", "q75", "q95", "q100")
DECILES = tuple(f"decile_{index}" for index in range(10))


def value_agreement(answers: Mapping[str, Answered]) -> Figure:
    """Figure 4: how often a value's top token is what follows its memory's best trigger, with the baselines."""
    answer = answers["value_agreement"]
    panels = [
        lines(
            answer,
            AGREEMENT,
            name="value_agreement",
            title="top token of the value = target",
            y="share of memories",
            dodge=True,
        )
    ]
    if answer.rows("log_probability_gain"):
        panels.append(
            lines(
                answer,
                [Series("log_probability_gain", GREEN, title="all triggers, against the unigram")],
                name="value_agreement_gain",
                title="beyond the top token: log probability of what follows all triggers",
                y="gain (nats)",
                format="~g",
                zero=True,
            )
        )
    return Figure(
        tuple(panels),
        "Share of memories whose value ranks their target first (the token that follows the best trigger). Baselines:"
        " the same with the targets shuffled among the memories, always guessing the most frequent next token, and 1"
        " over the size of the vocabulary.",
        f"Agreement is {ends(answer, 'agreement')}; over all layers {over_all(answer, 'agreement')}, against"
        f" {over_all(answer, 'shuffled_targets')} with shuffled targets.",
    )


def value_rank(answers: Mapping[str, Answered]) -> Figure:
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


def value_confidence(answers: Mapping[str, Answered]) -> Figure:
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
