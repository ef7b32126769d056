"""How things are written for people: numbers in plain words, texts with their white space seen; and for JSON.

Knows how to say things, not what is true, nor which number is which: a question declares that. No control code of a
text from anywhere gets through to a terminal or a page.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Literal

DASH = "\N{EM DASH}"
"""What stands where there is no number."""

Form = Literal["share", "number", "count", "rank", "nats"]
"""How a number is to be read: a share of 1, a number with decimals, a count, a rank from 0, a log probability."""

_SPACE = "\N{NO-BREAK SPACE}"
_DOUBLED_SPACE = re.compile(r"(?:\A|(?<=[ \n\t])) ")
_SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}

def format_value(value: float | None, form: Form) -> str:
    """The value as one reads it; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return DASH
    if form == "share":
        return percent(value)
    if form in ("count", "rank"):
        return f"{value:,.0f}"
    return number(value)


def percent(share: float) -> str:
    """A share as a percentage: `34.5 %`, `3.1 %`, `0.35 %`, `0.00040 %`; `0 %` and `100 %` only where it is exact.

    The space does not break.
    """
    value = 100 * share
    size = abs(value)
    if value in (0, 100, -100):
        return f"{value:.0f}{_SPACE}%"
    if size >= 0.995:
        # 99.96 % is not all.
        return f"{math.copysign(min(size, 99.9) if size < 100 else size, value):.1f}{_SPACE}%"
    digits = 1 - math.floor(math.log10(size))
    return f"{value:.{min(digits, 8)}f}{_SPACE}%"


def number(value: float) -> str:
    """A number with three figures, or whole where it is large."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return f"{value:.2f}"
    return f"{value:.2g}"


def times_chance(probability: float | None, vocabulary: int) -> str:
    """How many times an even probability over the vocabulary a token's probability is: `1.7`, `1,200`, or a dash."""
    if probability is None or not math.isfinite(probability):
        return DASH
    times = probability * vocabulary
    return f"{times:,.0f}" if times >= 9.95 else f"{times:.1f}"


def format_interval(low: float | None, high: float | None, form: Form) -> str:
    """`[3.1 %, 3.9 %]`, or nothing where there is no interval."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{format_value(low, form)}, {format_value(high, form)}]"


def join_words(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def format_layers(layers: Sequence[int], *, bare: bool = False) -> str:
    """`layer 3`, `layers 3-7`, `layers 3, 5`, and without the word if `bare`: for sorted layers, at least one."""
    return _format_numbers(layers, "" if bare else "layer")


def _format_numbers(numbers: Sequence[int], noun: str) -> str:
    word = "" if not noun else f"{noun} " if len(numbers) == 1 else f"{noun}s "
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word}{numbers[0]}-{numbers[-1]}"
    return word + ", ".join(map(str, numbers))


def format_blocks(layers: Sequence[int], others: Mapping[str, str]) -> str:
    """`layers 0, 1 are those of blocks 1, 3; Mamba in block 0, Attention in block 2`: for blocks without a layer."""
    kinds: dict[str, list[int]] = {}
    for number, kind in others.items():
        kinds.setdefault(kind, []).append(int(number))
    rest = (f"{kind} in {_format_numbers(sorted(own), 'block')}" for kind, own in kinds.items())
    own = f"{format_layers(range(len(layers)))} {'is that' if len(layers) == 1 else 'are those'}"
    return f"{own} of {_format_numbers(layers, 'block')}; without one: {', '.join(rest)}"


def pluralise(count: int, noun: str, plural: str | None = None) -> str:
    """`1 layer`, `3,000 layers`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def show_token(text: str) -> str:
    """A token's text with every space as a middle dot; an empty text as two quotes."""
    return _show_signs(text.replace(" ", "·")) or "''"


def show_text(text: str) -> str:
    """Running text with its line breaks and tabs visible, and of its spaces those at the start or doubled."""
    return _show_signs(_DOUBLED_SPACE.sub("·", text))


def show_controls(text: str) -> str:
    """Output as it is laid out, spaces and line feeds untouched; whatever would act on a terminal is seen instead."""
    return "".join(char if char in " \n\u00a0" or char.isprintable() else _sign(char) for char in text)


def before_token(prefix: str, token: str) -> str:
    """The prefix without its last token, both as text.

    A token that is part of a character has no text of its own at the prefix's end, only a replacement mark.
    """
    return prefix.removesuffix(token) if prefix.endswith(token) else prefix.rstrip("\ufffd")


def _show_signs(text: str) -> str:
    """The text with a sign for every character that cannot be seen; a page has thousands of texts, and few need any."""
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
    """The same value with None for NaN and infinities, text for keys, and lists for tuples, at every depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    return value


HTML_CELL = "padding:2px 6px;white-space:nowrap;text-align:left;color:inherit"
"""The style of a table's cell in a notebook."""


def html_row(head: str, texts: Iterable[str], *, tag: str = "td") -> str:
    """A row of an HTML table in a notebook: its heading and its cells, escaped."""
    cells = "".join(f'<{tag} style="{HTML_CELL}">{escape(text)}</{tag}>' for text in texts)
    return f'<tr><th style="{HTML_CELL}">{escape(head)}</th>{cells}</tr>'


def html_table(rows: Iterable[str]) -> str:
    """The rows as an HTML table in a notebook."""
    return "\n".join(['<table style="border-collapse:collapse">', *rows, "</table>"])


def runs(numbers: Iterable[int]) -> str:
    """Whole numbers as runs: 0, 1, 2, 5 -> `0-2,5`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
