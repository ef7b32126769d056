"""A trace as plain text, at most 118 columns wide: all positions' predictions, then one position layer by layer.

Spaces inside tokens show as middle dots and control characters as signs (atlas/visible.py), so that no prompt can
disturb a terminal.
"""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from mnemoscope.atlas.visible import in_token
from mnemoscope.errors import PromptError
from mnemoscope.tracing.interventions import Intervention
from mnemoscope.tracing.prompts import Guess
from mnemoscope.tracing.records import Decision, Dominant, Place, Position

WIDTH = 118
_GAP = "  "

Column = tuple[str, str, int]
"""A column's name, `left` or `right`, and the most cells that it may take."""


def fitted(text: str, width: int) -> str:
    """The text in at most so many cells; what is cut off leaves an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without rules, header first."""
    cells = [[fitted(text, most) for text, (_, _, most) in zip(row, columns, strict=True)] for row in rows]
    widths = [max([cell_len(name), *(cell_len(row[i]) for row in cells)]) for i, (name, _, _) in enumerate(columns)]
    lines = []
    for row in [[name for name, _, _ in columns], *cells]:
        padded = [
            " " * (width - cell_len(text)) + text if side == "right" else text + " " * (width - cell_len(text))
            for text, width, (_, side, _) in zip(row, widths, columns, strict=True)
        ]
        lines.append(fitted(_GAP.join(padded).rstrip(), WIDTH))
    return lines


def prediction_text(guess: Guess, *, width: int = 15) -> str:
    """A prediction in one cell: the token and its probability."""
    return f"{fitted(in_token(guess.token.text), width - 6)} {guess.probability:.3f}"


def decision_text(when: Decision) -> str:
    """The layer from which on a prediction stands, in words."""
    return "never" if when.decided is None else f"layer {when.decided}"


def choose_position(count: int, position: int | None) -> int:
    """The one of `count` positions meant: negative ones count from the end, None is the last; raises PromptError."""
    chosen = count - 1 if position is None else position + count if position < 0 else position
    if not 0 <= chosen < count:
        raise PromptError(f"position {position} is not in the prompt, which has positions 0 to {count - 1}")
    return chosen


def trace_text(
    model: str,
    positions: Sequence[Position],
    places: Sequence[Sequence[Place]],
    interventions: Sequence[Intervention],
    *,
    position: int | None,
    memories: int,
) -> str:
    """The whole text of a trace; raises PromptError for a position that the prompt does not have."""
    count = len(positions)
    chosen = choose_position(count, position)
    lines = [fitted(f"{model}: {count} tokens, {len(places)} layers", WIDTH)]
    if interventions:
        lines.append(fitted("with " + ", ".join(map(str, interventions)), WIDTH))
    lines += ["", *_position_lines(positions), "", *layer_lines(positions[chosen], places, memories)]
    return "\n".join(lines)


def _position_lines(positions: Sequence[Position]) -> list[str]:
    columns: list[Column] = [("position", "right", 8), ("token", "left", 20), ("predicted next", "left", 24),
                             ("then", "left", 50), ("decided in", "left", 10)]  # fmt: skip
    rows = [
        [
            str(at.position),
            in_token(at.token.text),
            prediction_text(at.prediction[0], width=24),
            _GAP.join(prediction_text(guess) for guess in at.prediction[1:4]),
            decision_text(at.output),
        ]
        for at in positions
    ]
    return table(columns, rows)


def layer_lines(at: Position, places: Sequence[Sequence[Place]], memories: int) -> list[str]:
    """What every layer does after one position, as lines; `places[layer][position]`."""
    token = fitted(in_token(at.token.text), 30)
    lines = [f"Layer by layer after position {at.position}, {token}: what is on top, and who contributes most"]
    columns: list[Column] = [("layer", "right", 5), ("residual", "left", 16), ("feed-forward", "left", 16),
                             ("output", "left", 16), ("event", "left", 11), ("active", "right", 6),
                             ("share memory → vote", "left", 40)]  # fmt: skip
    rows = []
    for layer, row in enumerate(places):
        place = row[at.position]
        shown = place.memories[:memories] or (None,)
        for number, dominant in enumerate(shown):
            streams = (prediction_text(guesses[0]) for guesses in (place.residual, place.ffn, place.output))
            start = [str(layer), *streams, place.event, str(place.active)]
            rows.append([*(start if number == 0 else [""] * 6), _memory(dominant)])
    return [*lines, *table(columns, rows)]


def _memory(dominant: Dominant | None) -> str:
    if dominant is None:
        return "(none)"
    sign = "+" if dominant.sign > 0 else "-"
    return f"{dominant.share:5.1%} {sign}{dominant.memory} → {in_token(dominant.vote.text)}"
