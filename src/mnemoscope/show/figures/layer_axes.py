"""Draws axes and legend of a layer's picture as SVG, placed as the drawing library would place them.

The library takes a second to load and draw, and a layer's page is often the first one opened. Tests compare the result
with the library's. Widths of letters are Arial's; a page's own font may be slightly wider.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from mnemoscope.show.figures.colours import PATTERN_COLOURS

Mark = tuple[float, str]
"""A position on an axis, and its label."""

_LETTERS = {"%": 0.889, ".": 0.278, "n": 0.556, "e": 0.556, "v": 0.5, "r": 0.333}
"""Widths relative to the font size; other characters are digits."""
_DIGIT, _SIZE = 0.556, 12
_LEGEND = (0, 91, 190, 355)
_LEAST_LABELS = 44
"""Least width of the vertical axis's labels, so that pictures of layers are aligned."""
_INK = 'stroke="currentColor" stroke-width="1"'
_CIRCLE = "M4.18,0A4.18,4.18,0,1,1,-4.18,0A4.18,4.18,0,1,1,4.18,0"


def percent(share: float) -> str:
    """A share as an axis label: `0.01%`, without trailing zeros or an exponent."""
    return f"{np.format_float_positional(100 * share, precision=12, fractional=False, trim='-')}%"


def width(text: str) -> float:
    return _SIZE * sum(_LETTERS.get(letter, _DIGIT) for letter in text)


def draw_axes(
    across: Sequence[Mark],
    up: Sequence[Mark],
    *,
    size: tuple[int, int],
    titles: tuple[str, str],
    legend: bool,
    label: str,
) -> tuple[str, str]:
    """The drawing in two halves; content between them uses the coordinates of its panel of `size` (width, height).
    `across` are marks from left to right, `up` from the bottom; both start at 0.
    """
    wide, high = size
    levels = [(high - place, text) for place, text in up]
    labels = max(_LEAST_LABELS, 7 + max((width(text) for _, text in up), default=0.0))
    left, top = round(labels + 25), 24 if legend else 9
    before = [
        f'<svg width="{left + wide + 7}" height="{top + high + 43}" viewBox="0 0 {left + wide + 7} {top + high + 43}"'
        f' class="drawing" role="group" aria-label="{escape(label)}" font-family="inherit">'
        f'<g fill="none" stroke-miterlimit="10" transform="translate({left},{top})">',
        '<g transform="translate(0.5,0.5)">',
        *(f'<path d="M0 {_tick(y)}h{wide}" {_INK} stroke-opacity="0.13"/>' for y, _ in levels),
        *(f'<path d="M{_tick(x)} {high}v5" {_INK} stroke-opacity="0.5"/>' for x, _ in across),
        *(f'<path d="M0 {_tick(y)}h-5" {_INK} stroke-opacity="0.5"/>' for y, _ in levels),
        f'<path d="M0 {high}h{wide}M0 {high}v{-high}" {_INK} stroke-opacity="0.5"/>',
        *_labels_across(across, wide, high + 16),
        *_labels_up(levels),
        _text(wide / 2, high + 36, titles[0], size=13),
        f'<g transform="translate({-labels - 11:g},{high / 2:g}) rotate(-90)">{_text(0, 0, titles[1], size=13)}</g>',
        "</g>",
    ]
    after = [f'<g transform="translate(0,-20)">{"".join(map(_entry, _LEGEND, PATTERN_COLOURS))}</g>'] if legend else []
    return "".join(before), "".join([*after, "</g></svg>"])


def _labels_across(marks: Sequence[Mark], wide: int, y: float) -> list[str]:
    """The labels that fit, from left to right; those at the ends stay within the panel."""
    labels, end = [], -np.inf
    for x, text in marks:
        anchor = "start" if x < 1 else "end" if x > wide - 1 else "middle"
        begin = x - width(text) * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        if begin > end:
            labels.append(_text(x, y, text, anchor=anchor))
            end = begin + width(text)
    return labels


def _labels_up(marks: Sequence[Mark]) -> list[str]:
    labels, end = [], np.inf
    for y, text in marks:
        if y + _SIZE / 2 < end:
            labels.append(_text(-7, y + 4, text, anchor="end"))
            end = y - _SIZE / 2
    return labels


def _entry(x: int, kind: tuple[str, str, str]) -> str:
    _, name, colour = kind
    point = f'<path transform="translate({x + 6},6)" d="{_CIRCLE}" fill="{colour}"/>'
    return point + _text(x + 16, 10, name, anchor="start")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = _SIZE) -> str:
    return (
        f'<text x="{round(x, 2):g}" y="{round(y, 2):g}" text-anchor="{anchor}" font-size="{size}px"'
        f' fill="currentColor">{escape(text)}</text>'
    )


def _tick(place: float) -> int:
    """Lines are drawn on whole pixels."""
    return int(np.floor(place + 0.5))
