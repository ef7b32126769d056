"""The paper's Figure 1 of any prompt and layer: the prefix, keys with labels, coefficients, weighted values, their sum,
and what it promotes.

The SVG is written directly, as that of layer_picture.py; once for wide windows and files, once for phones. Of a
weighted value's bar the pale part is its length, the full part what of it points along the sum: full parts add up.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from mnemoscope.errors import OptionError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.formatting import format_value, pluralise, show_text, show_token
from mnemoscope.show.figures.colours import BLUE, GREEN, GREY, ORANGE

if TYPE_CHECKING:
    from mnemoscope.atlas import Atlas
    from mnemoscope.foundation.memory_changes import Interventions
    from mnemoscope.models import LanguageModel

Data = Mapping[str, Any]
ENDINGS = (".svg", ".png", ".pdf")
_LETTER = 7.0
"""Width of a letter of 12 pixels, with room for wider fonts."""
_NUMBER = 52
_INK = 'fill="none" stroke="currentColor" stroke-opacity="0.5"'
_STREAMS = {"residual": "residual r", "ffn": "+ update u", "output": "= output o"}
_NOTES = (
    "Blue: m > 0, orange: m < 0. Pale: the length, |m| norm(v);",
    "full: its part along the sum y; these parts add up to y.",
)
_PREDICT = "What r and o predict and u promotes, by the model's own head:"


@dataclass(frozen=True)
class Slot:
    """A column of the rows: its left end, its line below a row's top, its width, and its title, if it has one."""

    x: int
    line: int
    width: int
    title: str = ""


@dataclass(frozen=True)
class Layout:
    """`row` is the height of a memory's row, the rows after them are lines."""

    width: int
    row: int
    key: Slot
    coefficient: Slot
    weighted: Slot
    tokens: Slot


_LINE = 24
_TITLES = "coefficient m", "m·v"
BROAD = Layout(
    960,
    _LINE,
    Slot(0, 16, 290, "key, by its label"),
    Slot(300, 16, 120, _TITLES[0]),
    Slot(436, 16, 300, f"weighted value {_TITLES[1]}"),
    Slot(752, 16, 208, "best tokens of ±v"),
)
NARROW = Layout(
    380, 62, Slot(0, 16, 380), Slot(0, 52, 126, _TITLES[0]), Slot(140, 52, 240, _TITLES[1]), Slot(0, 34, 380)
)


def draw(data: Data, layout: Layout = BROAD, *, link: Callable[[str], str] | None = None, margin: int = 0) -> str:
    """The SVG of `LayerSum.to_dict()`; `link` gives a memory's address. With a margin it has a white background."""
    title = f"Layer {data['layer']} as key-value memories after {show_token(data['tokens'][-1]['text'])}"
    y, parts = 62, [_text(0, 14, title, layout.width, size=14), *_boxes(data["tokens"], layout.width)]
    for cell in (layout.key, layout.coefficient, layout.weighted, layout.tokens):
        parts.append(_text(cell.x, y + 14, cell.title, cell.width, faint=True))
    for place, said in enumerate(("along y", "length")):
        end = layout.weighted.x + layout.weighted.width - place * _NUMBER
        parts.append(_text(end, y + 14, said, _NUMBER, anchor="end", faint=True))
    parts.append(_rule(y := y + 22, layout.width))
    memories, shares = _rows(data, layout, link)
    for height, row in [*((layout.row, row) for row in memories), *((_LINE, row) for row in shares)]:
        if row is shares[-1]:
            parts.append(_rule(y := y + 6, layout.width))
        parts.append(f'<g transform="translate(0,{y})">{row}</g>')
        y += height
    own = ["The layer's own norm or gate makes u of the sum."] if data["normed"] else []
    for note in [*([" ".join(_NOTES)] if layout is BROAD else _NOTES), *own, _PREDICT]:
        parts.append(_text(0, y + 20, note, BROAD.width, faint=True))
        y += 17
    column = (layout.width + 12) / len(_STREAMS)
    for number, (name, said) in enumerate(_STREAMS.items()):
        parts += _stream(said, data[name], number * column, y + 12, column - 12)
    width, height = layout.width + 2 * margin, y + 36 + 18 * len(data["output"]) + 2 * margin
    ground = f'<rect x="{-margin}" y="{-margin}" width="{width}" height="{height}" fill="#ffffff"/>' if margin else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="{-margin} {-margin} {width} {height}" class="drawing" role="group" aria-label="{escape(title)}"'
        f' font-family="inherit">{ground}{"".join(parts)}</svg>'
    )


def _boxes(tokens: Sequence[Data], width: int) -> Iterator[str]:
    """The last tokens of the prefix as boxes, as many as there is room for, and how many are before them."""
    boxes: list[tuple[str, float]] = []
    for token in reversed(tokens):
        text = _fit(show_token(token["text"]), 20 * _LETTER)
        boxes.insert(0, (text, cell_len(text) * _LETTER + 12))
        if sum(wide + 4 for _, wide in boxes) > width - 60 and len(boxes) > 1:
            del boxes[0]
            break
    x = 0.0
    if before := len(tokens) - len(boxes):
        yield _text(0, 44, f"… {before} +", 56, faint=True)
        x = 60.0
    for at, (text, wide) in enumerate(boxes):
        ink = _INK.replace("0.5", "1") if at == len(boxes) - 1 else _INK
        yield f'<rect x="{x:g}" y="28" width="{wide:g}" height="24" rx="3" {ink}/>{_text(x + 6, 44, text, wide)}'
        x += wide + 4
    yield f'<path d="M{x - 4 - wide / 2:g} 52v10m-3 -4l3 4l3 -4" {_INK}/>'


def _rows(data: Data, layout: Layout, link: Callable[[str], str] | None) -> tuple[list[str], list[str]]:
    """The rows of the memories; and those of the others, the bias, where there is one, and the sum."""
    memories, rest = data["memories"], [data[name] for name in ("others", "bias", "total")]
    coefficients = [one["coefficient"] for one in memories]
    weighted = [(one["contribution"], one["along"]) for one in memories] + [
        (one["length"], one["along"]) for one in rest
    ]
    ends = [-length if along < 0 else length for length, along in weighted]
    rows = []
    for one in memories:
        name, colour = one["memory"], BLUE if one["coefficient"] > 0 else ORANGE
        tokens = " ".join(show_token(token["text"]) for token in one["top"])
        label = _fit(show_text(one["label"] or ""), layout.key.width - (len(name) + 1) * (_LETTER + 1))
        named = f'<tspan font-weight="600">{name}</tspan>'
        named = f'<a href="{escape(link(name))}">{named}</a>' if link else named
        rows.append(
            f"<title>{escape(name + ': ' + show_text(one['label'] or tokens))}</title>"
            + _text(layout.key.x, layout.key.line, None, 0, inside=f"{named} {escape(label)}")
            + _bar(layout.coefficient, layout.coefficient.line, coefficients, (one["coefficient"],), colour)
            + _bar(layout.weighted, layout.weighted.line, ends, (one["contribution"], one["along"]), colour)
            + _text(layout.tokens.x, layout.tokens.line, tokens, layout.tokens.width)
        )
    others = pluralise(rest[0]["memories"], "other memory", "other memories")
    shares = [
        _text(layout.key.x, layout.key.line, said, layout.key.width)
        + _bar(layout.weighted, layout.key.line, ends, (one["length"], one["along"]), colour)
        for said, one, colour in zip((others, "bias", "their sum y"), rest, (GREY, GREY, GREEN), strict=True)
        if one is not data["bias"] or one["length"]
    ]
    return rows, shares


def _bar(cell: Slot, line: int, ends: Sequence[float], numbers: Sequence[float], colour: str) -> str:
    """A bar from zero to the last of its numbers, pale on to the size of the first; `ends` are those of all bars."""
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = (cell.width - _NUMBER * len(numbers)) / ((high - low) or 1.0)
    zero, value, parts = cell.x - low * scale, numbers[-1], []
    for size, opacity in ((abs(numbers[0]), 0.3), (abs(value), 1)):
        x, wide = zero - size * scale if value < 0 else zero, size * scale
        parts.append(_rect(x, line - 11, wide, 14, colour, opacity))
    parts.append(f'<path d="M{zero:.2f} {line - 13}v18" {_INK}/>')
    for place, number in enumerate(reversed(numbers)):
        text = format_value(number + 0.0, "number").replace("-", "\N{MINUS SIGN}")
        parts.append(_text(cell.x + cell.width - place * _NUMBER, line, text, 80, anchor="end"))
    return "".join(parts)


def _stream(said: str, guesses: Sequence[Data], x: float, y: int, width: float) -> Iterator[str]:
    yield _text(x, y + 12, said, width + 10)
    yield f'<path d="M{x:g} {y + 17}h{width:g}" {_INK}/>'
    for at, one in enumerate(guesses, start=1):
        line, bar = y + 16 + 18 * at, (width - 46) / 2
        yield _text(x, line, show_token(one["text"]), bar)
        yield _rect(x + bar, line - 10, bar * one["probability"], 12, GREEN)
        yield _text(x + width, line, format_value(one["probability"], "share"), 80, anchor="end")


def _text(
    x: float,
    y: float,
    text: str | None,
    width: float,
    *,
    anchor: str = "start",
    size: int = 12,
    faint: bool = False,
    inside: str = "",
) -> str:
    """A line of text, cut to a width; or markup that is the caller's."""
    content = inside if text is None else escape(_fit(text, width * 12 / size))
    opacity = ' fill-opacity="0.75"' if faint else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}px" fill="currentColor"{opacity}>'
        f"{content}</text>"
        if content
        else ""
    )


def _rect(x: float, y: int, width: float, height: int, colour: str, opacity: float = 1.0) -> str:
    ink = f'fill="{colour}" fill-opacity="{opacity:g}"'
    return f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" {ink}/>'


def _rule(y: int, width: int) -> str:
    return f'<path d="M0 {y}h{width}" {_INK}/>'


def _fit(text: str, width: float) -> str:
    letters = max(int(width / _LETTER), 2)
    return text if cell_len(text) <= letters else set_cell_size(text, letters - 1).rstrip() + "…"


@dataclass(frozen=True, repr=False)
class Figure1:
    """The picture, and its `numbers` as plain data. Draws itself in a notebook."""

    numbers: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The numbers: each listed memory's coefficient, length, part along the sum and best tokens; and the rest."""
        return self.numbers

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the picture; the file's ending says as what: .svg, .png or .pdf. Raises OptionError, StoreFailed."""
        from mnemoscope.show.figures.page_svg import picture_files  # imports the drawing library

        ending = check_ending(path)
        write_bytes(Path(path), picture_files(draw(self.numbers, margin=12))[ending[1:]])
        return Path(path)

    def _repr_html_(self) -> str:
        return draw(self.numbers)

    def __repr__(self) -> str:
        return f"<Figure 1 of layer {self.numbers['layer']}; save(path) writes it as SVG, PNG or PDF>"


def check_ending(path: str | os.PathLike[str]) -> str:
    """The ending of a picture's file; raises OptionError for another one."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise OptionError(f"{os.fspath(path)!r} is no picture: the file's name must end in .svg, .png or .pdf")
    return ending


def figure1(
    model: "LanguageModel",
    prompt: str,
    layer: int,
    *,
    position: int | None = None,
    memories: int = 10,
    atlas: "Atlas | None" = None,
    interventions: "Interventions" = None,
) -> Figure1:
    """The paper's Figure 1 for a layer after a position of the prompt: the memories with the largest |m| norm(v), the
    others as one bar, the sum, and what it promotes. An atlas of the model labels the keys.

    Raises OptionError for a layer that the model lacks, ModelUnsupported for one with norms behind its branches, and
    what `trace` raises.
    """
    from mnemoscope.tracing import layer_sum

    parts = layer_sum(
        model, prompt, layer, position=position, memories=memories, atlas=atlas, interventions=interventions
    )
    return Figure1(parts.to_dict())
