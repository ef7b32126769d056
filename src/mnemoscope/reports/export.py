"""A figure's specification as SVG, PNG and PDF: the same bytes for the same specification, every time.

The renderer goes on numbering its clipping paths from figure to figure, and lists the resources of a PDF in a random
order; both are put in order here. One font and one weight per figure keep the order of a PDF's fonts fixed, too.
"""

import re
from typing import Any

import vl_convert

from mnemoscope.figures.page_svg import grammar, number_clips

SCALE = 2
"""Pixels of a PNG per unit of the drawing."""

_RESOURCES = re.compile(rb"(?:^ +/\w+ \d+ 0 R\n){2,}", re.MULTILINE)


def exported(specification: dict[str, Any]) -> dict[str, bytes]:
    """The figure by ending: `svg`, `png`, `pdf`."""
    drawn = number_clips(vl_convert.vegalite_to_svg(specification, vl_version=grammar()))
    # Text and axes take the colour around them; a file on its own has white paper.
    fixed = drawn.replace("currentColor", "#1f2328")
    return {
        "svg": fixed.encode(),
        "png": vl_convert.svg_to_png(fixed, scale=SCALE),
        "pdf": _ordered(vl_convert.svg_to_pdf(fixed)),
    }


def script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that a page can hold; it offers `window.vegaEmbed`."""
    bundle: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=grammar())
    return bundle


def _ordered(pdf: bytes) -> bytes:
    """The document with each run of resource entries sorted, which moves no byte outside the run."""
    return _RESOURCES.sub(lambda run: b"".join(sorted(run.group().splitlines(keepends=True))), pdf)
