"""A scatter plot of a layer's memories as SVG: firing rate against the value's confidence, every point a link.

Axes (layer_axes.py) look like those of other figures; the thousands of points are written directly, on the same scales.
All layers of an atlas share the axes, so that their pictures can be compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.show.figures.chart import WIDTH
from mnemoscope.show.figures.colours import BLUE, PATTERN_COLOURS
from mnemoscope.show.figures.layer_axes import draw_axes, percent

HEIGHT = 340
RADIUS = 2.5
SPOKEN = 6_000
"""Largest number of points with titles; with more, the page would grow by megabytes."""
TITLES = ("prefixes at which it fires", "value's largest probability")


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis of `length` units; a value of 0 (never) has a place of its own below `least`."""

    low: float
    high: float
    least: float
    length: float

    def at(self, values: np.ndarray) -> np.ndarray:
        """Distances of the values from the start of the axis."""
        shown = np.clip(np.where(values <= 0, self.never, values), self.low, self.high)
        distances: np.ndarray = self.length * np.log(shown / self.low) / math.log(self.high / self.low)
        return distances

    @property
    def never(self) -> float:
        return math.sqrt(self.low * self.least)

    def ticks(self) -> list[float]:
        """Round values from `least` on, with fewer per decade over many decades."""
        ratio = self.high / self.least
        steps = (1, 1.5, 2, 3, 4, 5, 7) if ratio < 10 else (1, 2, 5) if ratio < 2_000 else (1,)
        first = math.floor(math.log10(self.least))
        candidates = [step * 10.0**power for power in range(first, first + 20) for step in steps]
        return [float(f"{one:.6g}") for one in candidates if self.least <= one <= self.high]


@dataclass(frozen=True)
class PictureFrame:
    """Axes and legend as two halves of a drawing, and the scales of the points between them."""

    before: str
    after: str
    rate: LogScale
    confidence: LogScale


def frame(atlas: Atlas, *, patterns: bool) -> PictureFrame:
    """The axes shared by all layers; `patterns` tells whether points are coloured by kind."""

    def read(layer: int) -> tuple[np.ndarray, np.ndarray]:
        counts = atlas.table("activity", layer=layer, columns=["positive", "prefixes"])
        values = atlas.table("values", layer=layer, columns=["max_probability"])
        return (counts["positive"] / counts["prefixes"].clip(1)).to_numpy(), values.to_series().to_numpy()

    rates, confidences = zip(*atlas.each_layer(read), strict=True)
    rate = _scale(np.concatenate(rates), WIDTH)
    confidence = _scale(np.concatenate(confidences), HEIGHT)
    never = [(rate.never, "never")] if rate.low < rate.least else []
    across = [*never, *((value, percent(value)) for value in rate.ticks())]
    up = [(value, percent(value)) for value in confidence.ticks()]
    marks = (
        [(float(scale.at(np.array(value))), text) for value, text in axis]
        for scale, axis in ((rate, across), (confidence, up))
    )
    label = "Memories by how often they fire and how confident their value is; the table below has the same numbers"
    before, after = draw_axes(*marks, size=(WIDTH, HEIGHT), titles=TITLES, legend=patterns, label=label)
    return PictureFrame(before, after, rate, confidence)


def _scale(values: np.ndarray, length: float) -> LogScale:
    above = values[(values > 0) & np.isfinite(values)]
    least, high = (float(above.min()), float(above.max())) if above.size else (0.01, 1.0)
    room = (high / least) ** 0.04 + 0.02
    least, high = least / room, min(high * room, 1.0) if high < 1 else high * 1.001
    never = bool((values == 0).any())
    return LogScale(least / (high / least) ** 0.08 if never else least, high, least, float(length))


def picture(
    frame: PictureFrame, memories: pl.DataFrame, *, shown: Sequence[int], titles: Sequence[str], links: Sequence[str]
) -> str:
    """The layer's picture: memories at the rows `shown` are linked points, the others a faint background. `memories`
    has rate, max_probability and kind (null: unknown), a row per memory; `titles` are the points' tooltips; `links` are
    the memories' addresses, such as `/L3.M17`.
    """
    x = np.round(frame.rate.at(memories["rate"].cast(pl.Float64).to_numpy()), 1)
    y = np.round(HEIGHT - frame.confidence.at(memories["max_probability"].cast(pl.Float64).to_numpy()), 1)
    places = [(f"{one:g}", f"{other:g}") for one, other in zip(x.tolist(), y.tolist(), strict=True)]
    known = np.isfinite(x) & np.isfinite(y)
    kinds = memories["kind"].to_list()
    chosen = set(shown)
    ground = "".join(f"M{x} {y}h0" for row, (x, y) in enumerate(places) if known[row] and row not in chosen)
    tooltips = [f"<title>{escape(title)}</title>" for title in titles] if len(shown) <= SPOKEN else [""] * len(titles)
    parts = [frame.before]
    if ground:
        parts.append(
            '<path fill="none" stroke="currentColor" stroke-opacity="0.18" stroke-linecap="round"'
            f' stroke-width="{2 * RADIUS - 1:g}" d="{ground}"/>'
        )
    for kind, _, colour in (*PATTERN_COLOURS, (None, "", BLUE)):
        points = "".join(
            f'<a href="{links[row]}" tabindex="-1">{tooltips[row]}'
            f'<circle cx="{places[row][0]}" cy="{places[row][1]}" r="{RADIUS:g}"/></a>'
            for row in shown
            if known[row] and kinds[row] == kind
        )
        if points:
            parts.append(f'<g fill="{colour}" fill-opacity="0.75">{points}</g>')
    return "".join([*parts, frame.after])
