"""A scatter plot of a layer's memories as SVG: how often each is active against its value's confidence, every point a
link; of the feature below zero a ring.

The drawing library takes a second to load and draw, and a layer's page is often the first one opened. So axes, legend
and the thousands of points are written directly, placed as the library would place them; tests compare them. All layers
of an atlas share the axes, so that their pictures can be compared.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import AT_WORK, strongly_active
from mnemoscope.foundation.words import in_words
from mnemoscope.show.figures.colours import BLUE, PATTERN_COLOURS

WIDTH, HEIGHT = 300, 170
"""For a phone; wider windows scale it, with smaller letters (style.css)."""
RADIUS = 1.5
SPOKEN = 6_000
"""Largest number of points with titles; with more, the page would grow by megabytes."""
TITLES = ("{places} at which it fires", "value's largest probability")
STRONG_TITLE, WORK_TITLE = "{places} at which it is strongly active", "probability at typical activation"
LABEL = "Memories by how often they are active and how confident their value is; the table below has the same numbers"
_LETTERS = {"%": 0.889, ".": 0.278, "n": 0.556, "e": 0.556, "v": 0.5, "r": 0.333}
"""Widths relative to the font size; other characters are digits."""
_DIGIT, _SIZE = 0.556, 12
_LEGEND = ((0, 0), (165, 0), (0, 14), (165, 14))
_LEAST_LABELS = 44
"""Least width of the vertical axis's labels, so that pictures of layers are aligned."""
_INK = 'stroke="currentColor" stroke-width="1"'
_CIRCLE = "M4.18,0A4.18,4.18,0,1,1,-4.18,0A4.18,4.18,0,1,1,4.18,0"


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis of `length` units; a value of 0 (never) has a place of its own below `least`."""

    low: float
    high: float
    least: float
    length: float

    def at(self, values: np.ndarray) -> np.ndarray:
        shown = np.clip(np.where(values <= 0, self.never, values), self.low, self.high)
        distances: np.ndarray = self.length * np.log(shown / self.low) / math.log(self.high / self.low)
        return distances

    @property
    def never(self) -> float:
        return math.sqrt(self.low * self.least)

    def ticks(self) -> list[float]:
        ratio = self.high / self.least
        steps = (1, 1.5, 2, 3, 4, 5, 7) if ratio < 10 else (1, 2, 5) if ratio < 2_000 else (1,)
        first = math.floor(math.log10(self.least))
        candidates = [step * 10.0**power for power in range(first, first + 20) for step in steps]
        return [float(f"{one:.6g}") for one in candidates if self.least <= one <= self.high]

    def marks(self, *, never: bool) -> list[tuple[float, str]]:
        """The labelled places of the axis, from its start; `never` labels the place of 0, if there is one."""
        labels = [(value, percent(value)) for value in self.ticks()]
        named = [(self.never, "never"), *labels] if never and self.low < self.least else labels
        return [(float(self.at(np.array(value))), text) for value, text in named]


@dataclass(frozen=True)
class PictureFrame:
    rate: LogScale
    confidence: LogScale
    legend: bool
    titles: tuple[str, str] = TITLES
    columns: tuple[str, str] = ("rate", "max_probability")
    """Of the points: across and up."""


def percent(share: float) -> str:
    """A share as an axis label: `0.01%`, without trailing zeros or an exponent."""
    return f"{np.format_float_positional(100 * share, precision=12, fractional=False, trim='-')}%"


def frame(atlas: Atlas, *, patterns: bool) -> PictureFrame:
    """Across: strongly active where coefficients can be below zero, since half of all are above it there. Up: the value
    at its typical activation; mined without prefixes at coefficient 1.
    """

    def read(layer: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        counts = ["positive", "prefixes", "min", "max", "sampled", "histogram"]
        return (
            atlas.table("activity", layer=layer, columns=counts),
            atlas.table("values", layer=layer, columns=["max_probability", *AT_WORK]),
        )

    activity, values = (pl.concat(one) for one in zip(*atlas.each_layer(read), strict=True))
    signed, at_work = bool((activity["min"] < 0).any()), values[AT_WORK[0]].count() > 0
    rates = strongly_active(activity) if signed else activity.select(pl.col("positive") / pl.col("prefixes").clip(1))
    confidences = values.select(AT_WORK) if at_work else values.select("max_probability")
    return PictureFrame(
        _scale(_together(rates), WIDTH),
        _scale(_together(confidences), HEIGHT),
        patterns,
        (in_words(STRONG_TITLE if signed else TITLES[0], atlas.reading.words), WORK_TITLE if at_work else TITLES[1]),
        ("strong" if signed else "rate", AT_WORK[0] if at_work else "max_probability"),
    )


def _together(columns: pl.DataFrame) -> np.ndarray:
    return np.concatenate([one.drop_nulls().to_numpy() for one in columns])


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
    """Memories at the rows `shown` of `memories` (the frame's columns, kind, and `negative` for the features below
    zero) are points with `titles` and `links`, the others a faint background.
    """
    across, up = (memories[name].cast(pl.Float64).to_numpy() for name in frame.columns)
    x, y = np.round(frame.rate.at(across), 1), np.round(HEIGHT - frame.confidence.at(up), 1)
    negative = memories["negative"].to_list() if "negative" in memories.columns else [False] * memories.height
    places = [(f"{one:g}", f"{other:g}") for one, other in zip(x.tolist(), y.tolist(), strict=True)]
    finite = np.isfinite(x) & np.isfinite(y)
    kinds, in_front = memories["kind"].to_list(), set(shown)
    tooltips = [f"<title>{escape(title)}</title>" for title in titles] if len(shown) <= SPOKEN else [""] * len(titles)
    parts = []
    if ground := "".join(f"M{x} {y}h0" for row, (x, y) in enumerate(places) if finite[row] and row not in in_front):
        parts.append(
            '<path fill="none" stroke="currentColor" stroke-opacity="0.18" stroke-linecap="round"'
            f' stroke-width="{2 * RADIUS - 1:g}" d="{ground}"/>'
        )
    colours = [*((kind, colour) for kind, _, colour in PATTERN_COLOURS), (None, BLUE)]
    for below, (kind, colour) in product((True, False), colours):  # rings first, so that they cover no point
        points = "".join(
            f'<a href="{links[row]}" tabindex="-1">{tooltips[row]}'
            f'<circle cx="{places[row][0]}" cy="{places[row][1]}" r="{RADIUS:g}"/></a>'
            for row in shown
            if finite[row] and kinds[row] == kind and negative[row] == below
        )
        if points:
            ink = f'fill="none" pointer-events="all" stroke="{colour}"' if below else f'fill="{colour}"'
            parts.append(f'<g {ink} {"stroke" if below else "fill"}-opacity="0.75">{points}</g>')
    return draw_axes(frame, parts)


def draw_axes(frame: PictureFrame, content: Iterable[str] = ()) -> str:
    across = frame.rate.marks(never=True)
    up = [(HEIGHT - place, text) for place, text in frame.confidence.marks(never=False)]
    labels = max(_LEAST_LABELS, 7 + max((_width(text) for _, text in up), default=0.0))
    left, top = round(labels + 25), 38 if frame.legend else 9
    size = left + WIDTH + 7, top + HEIGHT + 43
    parts = [
        f'<svg width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}"'
        f' class="drawing points" role="group" aria-label="{escape(LABEL)}" font-family="inherit">'
        f'<g fill="none" stroke-miterlimit="10" transform="translate({left},{top})">',
        '<g transform="translate(0.5,0.5)">',
        *(f'<path d="M0 {_tick(y)}h{WIDTH}" {_INK} stroke-opacity="0.13"/>' for y, _ in up),
        *(f'<path d="M{_tick(x)} {HEIGHT}v5" {_INK} stroke-opacity="0.5"/>' for x, _ in across),
        *(f'<path d="M0 {_tick(y)}h-5" {_INK} stroke-opacity="0.5"/>' for y, _ in up),
        f'<path d="M0 {HEIGHT}h{WIDTH}M0 {HEIGHT}v{-HEIGHT}" {_INK} stroke-opacity="0.5"/>',
        *_labels_across(across),
        *_labels_up(up),
        _text(WIDTH / 2, HEIGHT + 36, frame.titles[0], size=13),
        f'<g transform="translate({-labels - 11:g},{HEIGHT / 2:g}) rotate(-90)">',
        _text(0, 0, frame.titles[1], size=13),
        "</g>",
        "</g>",
        *content,
    ]
    if frame.legend:
        parts.append(f'<g transform="translate(0,-34)">{"".join(map(_entry, _LEGEND, PATTERN_COLOURS))}</g>')
    return "".join([*parts, "</g></svg>"])


def _labels_across(marks: Sequence[tuple[float, str]]) -> list[str]:
    """The labels that fit, from left to right; those at the ends stay within the panel."""
    labels, end = [], -np.inf
    for x, text in marks:
        anchor = "start" if x < 1 else "end" if x > WIDTH - 1 else "middle"
        begin = x - _width(text) * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        if begin > end:
            labels.append(_text(x, HEIGHT + 16, text, anchor=anchor))
            end = begin + _width(text)
    return labels


def _labels_up(marks: Sequence[tuple[float, str]]) -> list[str]:
    labels, end = [], np.inf
    for y, text in marks:
        if y + _SIZE / 2 < end:
            labels.append(_text(-7, y + 4, text, anchor="end"))
            end = y - _SIZE / 2
    return labels


def _entry(place: tuple[int, int], kind: tuple[str, str, str]) -> str:
    _, name, colour = kind
    x, y = place
    point = f'<path transform="translate({x + 6},{y + 6})" d="{_CIRCLE}" fill="{colour}"/>'
    return point + _text(x + 16, y + 10, name, anchor="start")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = _SIZE) -> str:
    return (
        f'<text x="{round(x, 2):g}" y="{round(y, 2):g}" text-anchor="{anchor}" font-size="{size}px"'
        f' fill="currentColor">{escape(text)}</text>'
    )


def _width(text: str) -> float:
    return _SIZE * sum(_LETTERS.get(letter, _DIGIT) for letter in text)


def _tick(place: float) -> int:
    """Lines are drawn on whole pixels."""
    return int(np.floor(place + 0.5))
