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
    from mnemoscope.foundation.options.chat_prompt import Prompt
    from mnemoscope.models import LanguageModel

Data = Mapping[str, Any]
Slot = tuple[int, int, int, str]
"""Of a row: left end, line below the row's top, width, title."""
Layout = tuple[int, int, Slot, Slot, Slot, Slot]
"""The width; the height of a memory's row; slots for key, coefficient, weighted value and tokens."""
BROAD: Layout = (
    *(960, 24, (0, 16, 290, "key"), (300, 16, 120, "activation m")),
    *((436, 16, 300, "weighted value m·v"), (752, 16, 208, "best tokens of ±v")),
)
NARROW: Layout = (380, 62, (0, 16, 380, ""), (0, 52, 126, "activation m"), (140, 52, 240, "m·v"), (0, 34, 380, ""))
_LINE, _LETTER, _NUMBER = 24, 7.0, 52
"""Height of a line; width of a letter of 12 pixels, with room for wider fonts; of a number."""
_STREAMS = {"residual": "residual r", "ffn": "+ update u", "output": "= output o"}
_NOTES = "m: activation (coefficient); orange below 0.", "Pale: length, |m| norm(v). Full: part along y; they add up."
_PREDICT = "r and o predict, u promotes, by the model's own head:"


def draw(data: Data, layout: Layout = BROAD, *, link: Callable[[str], str] | None = None, margin: int = 0) -> str:
    """The SVG of a `layer_sum`; `link` gives a memory's address. With a margin it has a white background."""
    token = show_token(data["tokens"][-1]["text"])
    title = f"Layer {data['layer']} as key-value memories {data.get('where', 'after')} {token}"
    wide, row, *slots = layout
    y, parts = 62, [_text(0, 14, title, wide), *_boxes(data, wide)]
    end = slots[2][0] + slots[2][2]
    titles = [(x, said, False) for x, _, _, said in slots] + [(end - _NUMBER, "length", True), (end, "along y", True)]
    parts += [_text(x, y + 14, said, at_end=at_end, faint=True) for x, said, at_end in titles]
    parts.append(_path(f"M0 {(y := y + 22)}h{wide}"))
    memories, shares = _rows(data, slots, link)
    for height, drawn in [*((row, one) for one in memories), *((_LINE, one) for one in shares)]:
        if drawn is shares[-1]:
            parts.append(_path(f"M0 {(y := y + 6)}h{wide}"))
        parts.append(f'<g transform="translate(0,{y})">{drawn}</g>')
        y += height
    own = ["The layer's own norm or gate makes u of y."] if data["normed"] else []
    for note in [*([" ".join(_NOTES)] if layout is BROAD else _NOTES), *own, _PREDICT]:
        parts.append(_text(0, (y := y + 17) + 3, note, faint=True))
    for number, (name, said) in enumerate(_STREAMS.items()):
        parts += _stream(said, data[name], number * (wide + 12) / 3, y + 12, (wide + 12) / 3 - 12)
    width, height = wide + 2 * margin, y + 36 + 18 * len(data["output"]) + 2 * margin
    ground = f'<rect x="{-margin}" y="{-margin}" width="{width}" height="{height}" fill="#ffffff"/>' if margin else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" class="drawing" role="group"'
        f' viewBox="{-margin} {-margin} {width} {height}" aria-label="{escape(title)}" font-family="inherit"'
        f' font-size="12px">{ground}{"".join(parts)}</svg>'
    )


def _boxes(data: Data, width: int) -> Iterator[str]:
    """The last tokens of the prefix as boxes, as many as there is room for, and how many are before them. Those of a
    chat's template have no box.
    """
    texts = [_fit(show_token(token["text"]), 20 * _LETTER) for token in data["tokens"]]
    start, own = data["position"] + 1 - len(texts), data["own"]
    wides = [cell_len(text) * _LETTER + 12 for text in texts]
    first = len(texts) - 1
    while first and sum(wides[first - 1 :]) + 4 * (len(texts) - first) < width - 60:
        first -= 1
    yield _text(0, 44, f"… {first} +" if first else "", faint=True)
    x = 60.0 if first else 0.0
    for at, (text, wide) in enumerate(zip(texts[first:], wides[first:], strict=True), start + first):
        pale = own is not None and not 0 <= at < own
        yield _path(f"M{x:g} 28h{wide:g}v24h{-wide:g}z") * (not pale) + _text(x + 6, 44, text, faint=pale)
        x += wide + 4
    yield _path(f"M{x - 4 - wides[-1] / 2:g} 52v10m-3 -4l3 4l3 -4")


def _rows(data: Data, slots: Sequence[Slot], link: Callable[[str], str] | None) -> tuple[list[str], list[str]]:
    """The rows of the memories; and those of the others, the bias, where there is one, and the sum."""
    rest = {name: data[name] for name in ("others", "bias", "total") if name != "bias" or data[name]["length"]}
    (x, line, width, _), coefficient, weighted, (tokens_x, tokens_line, tokens_width, _) = slots
    pairs = [(one.get("contribution", one.get("length")), one["along"]) for one in (*data["memories"], *rest.values())]
    ends = [-length if along < 0 else length for length, along in pairs]
    rows, shares = [], []
    for one, pair in zip(data["memories"], pairs, strict=False):
        name, m, label = one["memory"], one["coefficient"], show_text(one["label"] or "")
        tokens, colour = " ".join(show_token(token["text"]) for token in one["top"]), BLUE if m > 0 else ORANGE
        named = f'<tspan font-weight="600">{name}</tspan> '
        named = f'<a href="{escape(link(name))}">{named}</a>' if link else named
        rows.append(
            f"<title>{escape(f'{name}: {label or tokens}')}</title>"
            + _text(x, line, label, width - (len(name) + 1) * 8, start=named)
            + _bar(coefficient, coefficient[1], [each["coefficient"] for each in data["memories"]], (m,), colour)
            + _bar(weighted, weighted[1], ends, pair, colour)
            + _text(tokens_x, tokens_line, tokens, tokens_width)
        )
    said = {"others": pluralise(data["others"]["memories"], "other memory", "other memories"), "total": "their sum y"}
    for name, pair in zip(rest, pairs[len(rows) :], strict=True):
        bar = _bar(weighted, line, ends, pair, GREEN if name == "total" else GREY)
        shares.append(_text(x, line, said.get(name, name), width) + bar)
    return rows, shares


def _bar(slot: Slot, line: int, ends: Sequence[float], numbers: Sequence[float], colour: str) -> str:
    """A bar from zero to the last of its numbers, pale on to the size of the first; `ends` are those of all bars."""
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = (slot[2] - _NUMBER * len(numbers)) / ((high - low) or 1.0)
    zero, drawn = slot[0] - low * scale, ""
    for size, opacity in ((abs(numbers[0]) * scale, 0.3), (abs(numbers[-1]) * scale, 1)):
        drawn += _rect(zero - size if numbers[-1] < 0 else zero, line - 11, size, colour, opacity)
    drawn += _path(f"M{zero:.2f} {line - 13}v18")
    for place, number in enumerate(reversed(numbers)):
        text = format_value(number + 0.0, "number").replace("-", "\N{MINUS SIGN}")
        drawn += _text(slot[0] + slot[2] - place * _NUMBER, line, text, at_end=True)
    return drawn


def _stream(said: str, guesses: Sequence[Data], x: float, y: int, width: float) -> Iterator[str]:
    yield _text(x, y + 12, said) + _path(f"M{x:g} {y + 17}h{width:g}")
    bar = (width - 46) / 2
    for at, one in enumerate(guesses, start=1):
        line, share = y + 16 + 18 * at, format_value(one["probability"], "share")
        yield _text(x, line, show_token(one["text"]), bar) + _text(x + width, line, share, at_end=True)
        yield _rect(x + bar, line - 11, bar * one["probability"], GREEN)


def _text(
    x: float, y: float, text: str, width: float = 1e4, *, start: str = "", at_end: bool = False, faint: bool = False
) -> str:
    """A line of text, cut to a width, behind markup that is ours."""
    ink = ' text-anchor="end"' * at_end + ' fill-opacity="0.75"' * faint
    return f'<text x="{x:g}" y="{y:g}" fill="currentColor"{ink}>{start}{escape(_fit(text, width))}</text>'


def _rect(x: float, y: int, width: float, colour: str, opacity: float = 1.0) -> str:
    ink = f'fill="{colour}" fill-opacity="{opacity:g}"'
    return f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="14" {ink}/>'


def _path(steps: str) -> str:
    return f'<path d="{steps}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'


def _fit(text: str, width: float) -> str:
    letters = max(int(width / _LETTER), 2)
    return text if cell_len(text) <= letters else set_cell_size(text, letters - 1).rstrip() + "…"


@dataclass(frozen=True, repr=False)
class Figure1:
    """The picture, which a notebook shows, and its `numbers`: coefficient, length, part along the sum and best tokens
    of each listed memory, the others, the bias, the sum, and what the streams predict.
    """

    numbers: dict[str, Any]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the picture; the file's ending says as what: .svg, .png or .pdf. Raises OptionError, StoreFailed."""
        from mnemoscope.show.figures.page_svg import picture_files  # imports the drawing library

        write_bytes(Path(path), picture_files(draw(self.numbers, margin=12))[check_ending(path)])
        return Path(path)

    def _repr_html_(self) -> str:
        return draw(self.numbers)

    def __repr__(self) -> str:
        return f"<Figure 1 of layer {self.numbers['layer']}; save(path) writes it as SVG, PNG or PDF>"


def check_ending(path: str | os.PathLike[str]) -> str:
    """What a picture's file is, by its name; raises OptionError for another one."""
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in ("svg", "png", "pdf"):
        raise OptionError(f"{os.fspath(path)!r} is no picture: the file's name must end in .svg, .png or .pdf")
    return ending


def figure1(
    model: "LanguageModel",
    prompt: "Prompt",
    layer: int,
    *,
    position: int | None = None,
    memories: int = 10,
    atlas: "Atlas | None" = None,
    interventions: "Interventions" = None,
) -> Figure1:
    """The paper's Figure 1 for a layer after a position of the prompt: the memories with the largest ``abs(m)
    norm(v)``, the others as one bar, the sum, and what it promotes.

    Raises OptionError for a layer that the model lacks, ModelUnsupported for one with norms behind its branches, and
    what `trace` raises.

    Args:
        model: A LanguageModel, or a name that `load_model` takes.
        prompt: Plain text, read as mining reads a sentence, or the messages of a chat.
        layer: The layer, counted from 0.
        position: None: the last; below 0 from the end.
        memories: At most how many memories have a row of their own.
        atlas: An atlas of the model, or its folder: labels the keys.
        interventions: Changes of memories: {"L10.M222": 0.0} or ["L10.M222=0@last"].
    """
    from mnemoscope.tracing.layer_sum import layer_sum

    given = {"position": position, "memories": memories, "atlas": atlas, "interventions": interventions}
    return Figure1(layer_sum(model, prompt, layer, **given))  # type: ignore[arg-type]
