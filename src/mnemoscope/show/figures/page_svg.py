"""Converts a figure to SVG for embedding in a page: no style, no script, no external address; marks are links.

The renderer's SVG is rebuilt from a list of permitted elements and attributes; all else, such as roles, classes and
invisible frames, is dropped, which also halves the size. Lines and letters take the colour of the surrounding text, so
the drawing works in dark mode. A mark's tooltip becomes its `title`.
"""

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert

from mnemoscope.foundation.heap import require_addresses

_ADDRESSES = 66 << 30
"""Measured: 62.9 GiB were too few, 66.8 were enough."""
SVG = "{http://www.w3.org/2000/svg}"

ELEMENTS = frozenset({"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath"})
ATTRIBUTES = frozenset(
    {"d", "transform", "x", "y", "x1", "y1", "x2", "y2", "dx", "dy", "cx", "cy", "r", "width", "height", "viewBox"}
    | {"fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-miterlimit"}
    | {"opacity", "font-size", "font-weight", "text-anchor", "clip-path", "id"}
)
SPOKEN = ("point", "bar", "tick", "circle")
"""Marks with a tooltip; lines and bands get theirs from their points."""

SCALE = 2
"""Pixels of a PNG per unit of the drawing."""
_RESOURCES = re.compile(rb"(?:^ +/\w+ [0-9]+ 0 R\n){2,}", re.MULTILINE)
_LONG = re.compile(r"([0-9]+\.[0-9][0-9])[0-9]+")
_LAYER = re.compile(r"; layer: ([0-9]+)")
"""A layer in a tooltip, after the fields of the axes."""
_NUMBERED = re.compile(r"(?<=[\"#])(clip|gradient_)[0-9]+(?=[\")])")


def grammar() -> str:
    """The version of Vega-Lite, as the renderer names it."""
    require_addresses(_ADDRESSES, "drawing a figure")
    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def number_parts(svg: str, *, prefix: str = "") -> str:
    """Renumbers clipping paths and gradients from 0 and prefixes their names; the renderer counts on across figures."""
    new: dict[str, str] = {}
    for match in _NUMBERED.finditer(svg):
        new.setdefault(match.group(), f"{prefix}{match[1]}{len(new)}")
    return _NUMBERED.sub(lambda match: new[match.group()], svg)


def page_svg(specification: dict[str, Any], *, name: str, label: str, silent: bool = False) -> str:
    """The figure as one `svg` element with the id prefix `name`; marks with a layer link to its page unless it is
    `silent`.
    """
    config = specification["config"]
    # A page's font may be wider than the one that the renderer measures with.
    roomy = config | {"legend": {"columnPadding": 34} | config["legend"]}
    untitled = {key: part for key, part in specification.items() if key != "title"}
    shown = untitled | {"background": None, "padding": 4, "config": roomy}
    drawn = number_parts(vl_convert.vegalite_to_svg(shown, vl_version=grammar()), prefix=f"{name}-")
    root = ElementTree.fromstring(drawn)
    kept = ElementTree.Element("svg", _attributes(root))
    role = "img" if silent else "group"
    kept.attrib |= {"class": "drawing", "role": role, "aria-label": label, "font-family": "inherit"}
    kept.extend(_inside(root, name, silent=silent))
    return ElementTree.tostring(kept, encoding="unicode")


def picture_files(drawn: str) -> dict[str, bytes]:
    """A drawing as separate files, by ending. Of a PDF the resources, which the renderer lists in random order, are
    sorted.
    """
    # In pages, text and axes inherit their colour and font; a separate file has a white background.
    fixed = drawn.replace("currentColor", "#1f2328").replace('"inherit"', '"sans-serif"')
    return {
        "svg": fixed.encode(),
        "png": vl_convert.svg_to_png(fixed, scale=SCALE),
        "pdf": _RESOURCES.sub(
            lambda run: b"".join(sorted(run.group().splitlines(keepends=True))), vl_convert.svg_to_pdf(fixed)
        ),
    }


def _inside(parent: ElementTree.Element, name: str, *, silent: bool) -> Iterator[ElementTree.Element]:
    for child in parent:
        tag = child.tag.removeprefix(SVG)
        if tag not in ELEMENTS or child.get("display") == "none":
            continue
        kept = ElementTree.Element(tag, _attributes(child))
        kept.text = child.text
        kept.extend(_inside(child, name, silent=silent))
        if tag == "g":
            if kept.attrib:
                if len(kept):
                    yield kept
            else:
                yield from kept
        elif tag != "path" or kept.get("fill") or kept.get("stroke"):
            speaks = child.get("aria-roledescription") in SPOKEN and not silent
            if speaks and (label := child.get("aria-label")):
                title = ElementTree.Element("title")
                title.text = _own_words(label)
                kept.insert(0, title)
                if layer := _LAYER.search(label):
                    # Keyboard users have the same links in the table beside the figure.
                    link = ElementTree.Element("a", {"href": f"/layers/{layer[1]}", "tabindex": "-1"})
                    link.append(kept)
                    kept = link
            yield kept


def _attributes(element: ElementTree.Element) -> dict[str, str]:
    return {
        key: _LONG.sub(r"\1", value)
        for key, value in element.attrib.items()
        if key in ATTRIBUTES and not (key in ("opacity", "stroke-opacity", "fill-opacity") and value == "1")
    }


def _own_words(label: str) -> str:
    """The mark's tooltip, which the renderer appends to the fields of the axes."""
    _, layer, rest = label.partition("; layer: ")
    if layer:
        return f"layer: {rest}"
    # A field that is both in the tooltip and on the axis appears once, with the axis.
    axis, tenth, rest = label.partition("; tenth: ")
    return f"tenth: {rest}; {axis.partition('; ')[2]}" if tenth else label
