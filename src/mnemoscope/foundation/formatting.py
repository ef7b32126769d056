"""How values are written for people (numbers, texts with visible white space, tables of them) and for JSON.

Knows forms, not meanings: a question declares the form of its number. No control code reaches a terminal or a page.
"""

import json
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any, Literal

DASH = "\N{EM DASH}"

Form = Literal["share", "number", "count", "rank", "nats"]
"""How a number is shown: a share of 1, a number with decimals, a count, a rank from 0, a log probability."""

_SPACE = "\N{NO-BREAK SPACE}"
_DOUBLED_SPACE = re.compile(r"(?:\A|(?<=[ \n\t])) ")
_SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}


def format_value(value: float | None, form: Form) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    if form == "share":
        return percent(value)
    if form in ("count", "rank"):
        return f"{value:,.0f}"
    return number(value)


def percent(share: float) -> str:
    """`34.5 %`, `3.1 %`, `0.35 %`, `0.00040 %`, `1.2e-05 %`, with a no-break space; `0 %`, `100 %` only where exact."""
    value = 100 * share
    size = abs(value)
    if value in (0, 100, -100):
        return f"{value:.0f}{_SPACE}%"
    if size >= 0.995:
        # 99.96 % is not all.
        return f"{math.copysign(min(size, 99.9) if size < 100 else size, value):.1f}{_SPACE}%"
    digits = 1 - math.floor(math.log10(size))
    return f"{value:.{digits}f}{_SPACE}%" if size >= 1e-4 else f"{value:.2g}{_SPACE}%"


def plain_percent(share: float) -> str:
    """`percent` with an ordinary space, for terminals and logs."""
    return percent(share).replace(_SPACE, " ")


def number(value: float) -> str:
    """A number with two or three significant figures, whole from 100 on."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1 or size == 0:
        return f"{value:.2f}"
    return f"{value:.2g}"


def times_chance(probability: float | None, vocabulary: int) -> str:
    """A token's probability as a multiple of the uniform probability over the vocabulary: `1.7`, `1,200`, or a dash."""
    if probability is None or not math.isfinite(probability):
        return DASH
    times = probability * vocabulary
    return f"{times:,.0f}" if times >= 9.95 else f"{times:.1f}"


def format_interval(low: float | None, high: float | None, form: Form) -> str:
    """`[3.1 %, 3.9 %]`; empty where there is no interval."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{format_value(low, form)}, {format_value(high, form)}]"


def join_words(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def format_layers(layers: Sequence[int], noun: str = "layer") -> str:
    """`layer 3`, `layers 3-7`, `layers 3, 5`. The layers are sorted, at least one."""
    word = noun if len(layers) == 1 else f"{noun}s"
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{word} {layers[0]}-{layers[-1]}"
    return f"{word} {', '.join(map(str, layers))}"


def format_blocks(layers: Sequence[int], others: Mapping[str, str]) -> str:
    """`layers 0, 1 are those of blocks 1, 3; without one: Mamba in block 0`: for models with blocks without an FFN."""
    kinds: dict[str, list[int]] = {}
    for number, kind in others.items():
        kinds.setdefault(kind, []).append(int(number))
    rest = (f"{kind} in {format_layers(sorted(numbers), 'block')}" for kind, numbers in kinds.items())
    subject = f"{format_layers(range(len(layers)))} {'is that' if len(layers) == 1 else 'are those'}"
    return f"{subject} of {format_layers(layers, 'block')}; without one: {', '.join(rest)}"


def pluralise(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def show_token(text: str) -> str:
    """A token's text with every space as a middle dot; an empty text as two quotes."""
    return _show_signs(text.replace(" ", "·")) or "''"


def show_text(text: str) -> str:
    """Running text with visible line breaks and tabs, and a middle dot for a leading or doubled space."""
    return _show_signs(_DOUBLED_SPACE.sub("·", text))


def show_texts(texts: Sequence[str]) -> list[str]:
    """Pieces of one running text, each as `show_text` shows it in the whole."""
    whole = _DOUBLED_SPACE.sub("·", "".join(texts))
    return [_show_signs(whole[first:end]) for first, end in pairwise(accumulate(map(len, texts), initial=0))]


def show_controls(text: str) -> str:
    """Terminal output with spaces and line feeds as they are, and a visible sign for any other control character."""
    return "".join(char if char in " \n\u00a0" or char.isprintable() else _sign(char) for char in text)


def before_token(prefix: str, token: str) -> str:
    """The prefix without its last token; a token that is part of a character ends it as a replacement mark only."""
    return prefix.removesuffix(token) if prefix.endswith(token) else prefix.rstrip("\ufffd")


def _show_signs(text: str) -> str:
    """A sign for every invisible character. Printable texts return at once: a page has thousands."""
    return text if text.isprintable() else "".join(map(_sign, text))


def _sign(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if ord(char) < 32:
        return chr(0x2400 + ord(char))
    # Control, format (also right-to-left overrides), surrogate, unassigned and separators other than the space.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"):
        return f"\\u{ord(char):04x}"
    return char


def json_safe(value: Any) -> Any:
    """The value with None for NaN and infinities, text for keys, and lists for tuples, at every depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    return value


def json_line(value: Any) -> bytes:
    """A value as `json_safe`, on a line of JSON in UTF-8."""
    return f"{json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False)}\n".encode()


_GAP = "  "
_KEPT, _ENDLESS = 40, 1 << 30
"""Cells of a last column that a terminal's edge never takes: numbers of all others and in it stay whole; and more
than any cell has."""
_HTML_CELL = "padding:2px 6px;white-space:nowrap;text-align:left;color:inherit"
_columns: ContextVar[int | None] = ContextVar("columns", default=None)


@contextmanager
def for_terminal(columns: int | None) -> Iterator[None]:
    """Texts that are made inside are for a terminal of so many columns; None: for a pipe or a file."""
    before = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(before)


def fit(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def cut(text: str, most: int) -> str:
    """The text; in a terminal of at most so many cells."""
    return text if _columns.get() is None else fit(text, most)


class Pale(str):
    """A cell that is dim in a terminal."""


@dataclass(frozen=True)
class Table:
    """Rows with a form, written in three ways: as plain `lines`, as `html` for a notebook, and wrapped by the command
    line (cli/drawing.py). A column whose name begins with `>` is right-aligned.

    Lines are cut in a terminal only: each cell to the `most` cells of its column, and the whole at the terminal's edge.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    most: Sequence[int] = ()
    caption: str = ""

    @property
    def names(self) -> list[str]:
        return [name.removeprefix(">") for name in self.columns]

    def lines(self) -> list[str]:
        from rich.cells import cell_len

        most = self.most or (_ENDLESS,) * len(self.columns)
        rows = [self.names, *([cut(*cell) for cell in zip(row, most, strict=True)] for row in self.rows)]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        least = sum(widths[:-1]) + len(_GAP) * len(widths[1:]) + min(widths[-1], _KEPT)
        is_coloured = _columns.get() is not None and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        lines = []
        for row, cells in zip(rows, [(), *self.rows], strict=True):
            blanks = [" " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)]
            sides = zip(self.columns, row, blanks, strict=True)
            padded = [blank + text if name[:1] == ">" else text + blank for name, text, blank in sides]
            line = cut(_GAP.join(padded).rstrip(), max(_columns.get() or 0, least))
            if is_coloured:  # pale cells begin where they began before the line was cut
                starts = list(accumulate((len(text) + len(_GAP) for text in padded), initial=0))
                for start, text, cell in reversed(list(zip(starts, padded, cells, strict=False))):
                    if isinstance(cell, Pale) and (shown := line[start : start + len(text)]):
                        line = f"{line[:start]}\x1b[2m{shown}\x1b[22m{line[start + len(text) :]}"
            lines.append(line)
        return lines

    def html(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            kinds = zip(("th", *[tag] * len(cells[1:])), cells, strict=True)
            texts = (f'<{kind} style="{_HTML_CELL}">{escape(text)}</{kind}>' for kind, text in kinds)
            return f"<tr>{''.join(texts)}</tr>"

        rows = [*([row(self.names, "th")] if self.columns else []), *(row(cells, "td") for cells in self.rows)]
        return "\n".join(['<table style="border-collapse:collapse">', *rows, "</table>"])


def page_html(view: str, *shown: Any) -> str:
    """What a notebook shows: HTML without script or other files, by a function of `show.pages.notebook`, which uses the
    pages' templates. They lie on a higher floor than what is shown, so they are found by name when something is.
    """
    return str(getattr(import_module("mnemoscope.show.pages.notebook"), view)(*shown))


def runs(numbers: Iterable[int]) -> str:
    """Whole numbers as runs: 0, 1, 2, 5 -> `0-2,5`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
