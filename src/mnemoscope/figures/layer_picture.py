"""A layer at a glance: how often its memories fire against how confident their values are, every one a point, a link.

The axes are drawn like those of every figure; the points, thousands of them, are written straight into its panel, on
the same scales. All layers of an atlas have the same axes, so that their pictures can be compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.figures.chart import BLUE, KINDS, STYLE, WIDTH
from mnemoscope.figures.page_svg import page_frame

HEIGHT = 340
RADIUS = 2.5
SPOKEN = 6_000
"""Up to so many points say what they are when pointed at; with more, the page would grow by megabytes."""
ALONE = "memory"
"""The one kind where an atlas has no patterns."""


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis of `length` units; a value of 0 (never) has a place of its own below `least`."""

    low: float
    high: float
    least: float
    length: float

    def at(self, values: np.ndarray) -> np.ndarray:
        """How far from the axis's beginning the values stand."""
        shown = np.clip(np.where(values <= 0, self.never, values), self.low, self.high)
        found: np.ndarray = self.length * np.log(shown / self.low) / math.log(self.high / self.low)
        return found

    @property
    def never(self) -> float:
        """Where a value of 0 stands."""
        return math.sqrt(self.low * self.least)

    def ticks(self) -> list[float]:
        """Round values from `least` on, few to a decade where there are many decades."""
        ratio = self.high / self.least
        steps = (1, 1.5, 2, 3, 4, 5, 7) if ratio < 10 else (1, 2, 5) if ratio < 2_000 else (1,)
        first = math.floor(math.log10(self.least))
        found = [step * 10.0**power for power in range(first, first + 20) for step in steps]
        return [float(f"{one:.6g}") for one in found if self.least <= one <= self.high]


@dataclass(frozen=True)
class Frame:
    """Axes and legend as two halves of a drawing, and the scales by which points stand between them."""

    before: str
    after: str
    rate: Scale
    confidence: Scale


def frame(atlas: Atlas, *, patterns: bool) -> Frame:
    """The axes of every layer's picture; `patterns` tells whether points are coloured by kind."""
    rates, confidences = [], []
    for layer in atlas.layers:
        counts = atlas.table("activity", layer=layer, columns=["positive", "prefixes"])
        rates.append((counts["positive"] / counts["prefixes"].clip(1)).to_numpy())
        values = atlas.table("values", layer=layer, columns=["max_probability"])
        confidences.append(values.to_series().to_numpy())
    rate = _scale(np.concatenate(rates), WIDTH)
    confidence = _scale(np.concatenate(confidences), HEIGHT)
    # The points' own place in the drawing is found by one of them.
    one = {"rate": rate.high, "confidence": confidence.high, "kind": ALONE}
    specification = axes(rate, confidence, patterns=patterns, rows=[one])
    label = "Memories by how often they fire and how confident their value is; the table below has the same numbers"
    before, after = page_frame(specification, name="layer", label=label)
    return Frame(before, after, rate, confidence)


def _scale(values: np.ndarray, length: float) -> Scale:
    """An axis that holds all the values, with some room at its ends."""
    above = values[(values > 0) & np.isfinite(values)]
    least, high = (float(above.min()), float(above.max())) if above.size else (0.01, 1.0)
    room = (high / least) ** 0.04 + 0.02
    least, high = least / room, min(high * room, 1.0) if high < 1 else high * 1.001
    never = bool((values == 0).any())
    return Scale(least / (high / least) ** 0.08 if never else least, high, least, float(length))


def axes(rate: Scale, confidence: Scale, *, patterns: bool, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The picture's specification with these rows (rate, confidence, kind) as its points."""
    kinds = {label: colour for _, label, colour in KINDS} if patterns else {ALONE: BLUE}
    legend = alt.Legend(orient="top", title=None, symbolType="circle", symbolOpacity=1, symbolSize=70, offset=8)
    values = rate.ticks() + ([rate.never] if rate.low < rate.least else [])
    across = alt.Axis(
        values=values,
        labelExpr=f"datum.value < {rate.least!r} ? 'never' : format(datum.value, '~p')",
        labelOverlap="greedy",
    )
    up = alt.Axis(values=confidence.ticks(), format="~p", labelOverlap="greedy")
    drawn = (
        alt.Chart(alt.NamedData("points"))
        .mark_point(filled=True)
        .encode(
            x=alt.X("rate:Q", title="prefixes at which it fires", axis=across).scale(
                type="log", domain=[rate.low, rate.high], nice=False
            ),
            y=alt.Y("confidence:Q", title="value's largest probability", axis=up).scale(
                type="log", domain=[confidence.low, confidence.high], nice=False
            ),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=list(kinds), range=list(kinds.values())),
                legend=legend if patterns else None,
            ),
        )
        .properties(width=WIDTH, height=HEIGHT, name="points")
    )
    return {**drawn.to_dict(), "config": STYLE, "datasets": {"points": list(rows)}}


def picture(
    frame: Frame, memories: pl.DataFrame, *, shown: Sequence[int], titles: Sequence[str], links: Sequence[str]
) -> str:
    """The layer's picture: the memories at the rows `shown` as points that lead to them, the others as a faint ground.

    `memories` has rate, max_probability and kind (null: not known), a row per memory; `titles` says what each row's
    point says; `links` are the memories' addresses, such as `/L3.M17`.
    """
    x = np.round(frame.rate.at(memories["rate"].cast(pl.Float64).to_numpy()), 1)
    y = np.round(HEIGHT - frame.confidence.at(memories["max_probability"].cast(pl.Float64).to_numpy()), 1)
    places = [(f"{one:g}", f"{other:g}") for one, other in zip(x.tolist(), y.tolist(), strict=True)]
    known = np.isfinite(x) & np.isfinite(y)
    kinds = memories["kind"].to_list()
    chosen = set(shown)
    ground = "".join(f"M{x} {y}h0" for row, (x, y) in enumerate(places) if known[row] and row not in chosen)
    said = [f"<title>{escape(title)}</title>" for title in titles] if len(shown) <= SPOKEN else [""] * len(titles)
    parts = [frame.before]
    if ground:
        parts.append(
            '<path fill="none" stroke="currentColor" stroke-opacity="0.18" stroke-linecap="round"'
            f' stroke-width="{2 * RADIUS - 1:g}" d="{ground}"/>'
        )
    for kind, _, colour in (*KINDS, (None, "", BLUE)):
        points = "".join(
            f'<a href="{links[row]}" tabindex="-1">{said[row]}'
            f'<circle cx="{places[row][0]}" cy="{places[row][1]}" r="{RADIUS:g}"/></a>'
            for row in shown
            if known[row] and kinds[row] == kind
        )
        if points:
            parts.append(f'<g fill="{colour}" fill-opacity="0.75">{points}</g>')
    return "".join([*parts, frame.after])
