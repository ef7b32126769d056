"""A trace as text for a terminal.

All positions' predictions, then one position layer by layer. Nothing of it is cut, but for a terminal (`for_terminal`)
tables are: rows at its width, and long cells. Spaces inside tokens show as middle dots and control characters as signs
(formatting.py), so that no prompt can disturb a terminal.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate

from rich.cells import cell_len, set_cell_size

from mnemoscope.foundation.formatting import show_token
from mnemoscope.tracing.logit_sums import AttendedToken, LogitSum
from mnemoscope.tracing.records import Dominant, LayerState, Position, Prediction

WIDTH = 118
"""Columns at which a continuation goes on in the next line."""
_GAP = "  "
_KEPT = 40
"""Cells of a last column that a terminal's edge never takes: numbers of all others and in it stay whole."""
_SHOWN = 5

_columns: ContextVar[int | None] = ContextVar("columns", default=None)


class Pale(str):
    """A cell about a token of a chat's template: dim in a terminal."""


def cells_at(position: int, token: str, own: int | None) -> list[str]:
    """A position and its token, pale unless it is one of the `own` ones (None: all are)."""
    kind = str if own is None or 0 <= position < own else Pale
    return [kind(position), kind(show_token(token))]


Column = tuple[str, str, int]
"""A column's name, `left` or `right`, and its most cells in a terminal."""


@contextmanager
def for_terminal(columns: int | None) -> Iterator[None]:
    """Texts that are made inside are for a terminal of so many columns; None: for a pipe or a file."""
    before = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(before)


def _cell(text: str, most: int) -> str:
    return text if _columns.get() is None else fit(text, most)


def fit(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[_cell(text, most) for text, (_, _, most) in zip(row, columns, strict=True)] for row in rows]
    widths = [max([cell_len(name), *(cell_len(row[i]) for row in cells)]) for i, (name, _, _) in enumerate(columns)]
    lines, edge = [], _columns.get() or 0
    edge = max(edge, sum(widths[:-1]) + len(_GAP) * len(widths[1:]) + min(widths[-1], _KEPT))
    for row, given in zip([[name for name, _, _ in columns], *cells], [(), *rows], strict=True):
        padded = [
            " " * (width - cell_len(text)) + text if side == "right" else text + " " * (width - cell_len(text))
            for text, width, (_, side, _) in zip(row, widths, columns, strict=True)
        ]
        line = _cell(_GAP.join(padded).rstrip(), edge)
        lines.append(_dim(line, padded, given) if _in_colours() else line)
    return lines


def _in_colours() -> bool:
    return _columns.get() is not None and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _dim(line: str, padded: Sequence[str], given: Sequence[str]) -> str:
    """The line with the pale cells dim: they begin where they began before it was cut."""
    starts = list(accumulate((len(text) + len(_GAP) for text in padded), initial=0))
    for start, text, cell in reversed(list(zip(starts, padded, given, strict=False))):
        if isinstance(cell, Pale) and line[start : start + len(text)]:
            line = f"{line[:start]}\x1b[2m{line[start : start + len(text)]}\x1b[22m{line[start + len(text) :]}"
    return line


def prediction_text(prediction: Prediction, *, width: int | None = None) -> str:
    token = show_token(prediction.token.text)
    return f"{token if width is None else _cell(token, width - 6)} {prediction.probability:.3f}"


def position_lines(positions: Sequence[Position], own: int | None) -> list[str]:
    columns: list[Column] = [
        ("position", "right", 8),
        ("token", "left", 20),
        ("predicted next", "left", 24),
        ("then", "left", 50),
        ("decided in", "left", 10),
    ]
    rows = [
        [
            *cells_at(at.position, at.token.text, own),
            prediction_text(at.prediction[0], width=24),
            _GAP.join(prediction_text(other, width=15) for other in at.prediction[1:4]),
            "never" if at.output.decided is None else f"layer {at.output.decided}",
        ]
        for at in positions
    ]
    return table(columns, rows)


def layer_lines(at: Position, places: Sequence[Sequence[LayerState]], memories: int) -> list[str]:
    """`places[layer]` has the positions from the prompt's first token on."""
    token = _cell(show_token(at.token.text), 30)
    lines = [f"Layer by layer after position {at.position}, {token}: what is on top, and who contributes most"]
    columns: list[Column] = [
        ("layer", "right", 5),
        ("residual", "left", 16),
        ("feed-forward", "left", 16),
        ("output", "left", 16),
        ("event", "left", 11),
        ("active", "right", 6),
        ("share memory → vote", "left", 40),
    ]
    rows = []
    for layer, row in enumerate(places):
        state = row[at.position - row[0].position]
        streams = (prediction_text(best[0], width=15) for best in (state.residual, state.ffn, state.output))
        start = [str(layer), *streams, state.event, str(state.active)]
        for dominant in [_memory_text(one) for one in state.memories[:memories]] or ["(none)"]:
            rows.append([*start, dominant])
            start = [""] * len(start)
    return [*lines, *table(columns, rows)]


def _memory_text(one: Dominant) -> str:
    return f"{one.share:5.1%} {'+' if one.sign > 0 else '-'}{one.memory} → {show_token(one.vote.text)}"


def sum_lines(at: Position, written: LogitSum) -> list[str]:
    token = _cell(show_token(at.prediction[0].token.text), 30)
    lines = [
        f"Who wrote {token}, {written.logit_above_mean:.2f} above the mean logit: embedding"
        f" {written.embedding_above_mean:+.2f}, biases {written.bias_above_mean:+.2f}"
        + (f", other blocks {written.rest_above_mean:+.2f}" if abs(written.rest_above_mean) >= 0.005 else "")
    ]
    columns: list[Column] = [
        ("layer", "right", 5),
        ("attention", "right", 9),
        ("memories", "right", 8),
        ("positions", "right", 9),
        ("attends to (mean over heads)", "left", 80),
    ]
    rows = [
        [
            str(part.layer),
            "" if part.attention_above_mean is None else f"{part.attention_above_mean:+.2f}",
            f"{part.ffn_above_mean:+.2f}",
            "" if part.attended_positions is None else f"{part.attended_positions:.1f}",
            _GAP.join(map(_attended_text, part.attended[:4])),
        ]
        for part in written.layers
    ]
    return [*lines, *table(columns, rows)]


def _attended_text(one: AttendedToken) -> str:
    where = "" if one.position is None else f"@{one.position}"
    return f"{_cell(show_token(one.token.text), 12)}{where} {one.weight:.0%}"
