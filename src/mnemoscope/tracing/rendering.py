"""A trace as text: all positions' predictions, then one position layer by layer.

Nothing of it is cut but in a terminal (`for_terminal`). Spaces inside tokens show as middle dots and control characters
as signs (formatting.py), so that no prompt can disturb a terminal.
"""

from collections.abc import Sequence

from mnemoscope.foundation.formatting import Pale, Table, cut, show_token
from mnemoscope.tracing.logit_sums import AttendedToken, LogitSum
from mnemoscope.tracing.records import LayerState, Position, Prediction

WIDTH = 118
"""Columns at which a continuation goes on in the next line."""
_GAP = "  "


def cells_at(position: int, token: str, own: int | None) -> list[str]:
    """A position and its token, pale unless it is one of the `own` ones of a chat, not its template's (None: all)."""
    kind = str if own is None or 0 <= position < own else Pale
    return [kind(position), kind(show_token(token))]


def prediction_text(prediction: Prediction, *, width: int | None = None) -> str:
    token = show_token(prediction.token.text)
    return f"{token if width is None else cut(token, width - 6)} {prediction.probability:.3f}"


def position_lines(positions: Sequence[Position], own: int | None, *, of_next: bool = True) -> list[str]:
    rows = [
        [
            *cells_at(at.position, at.token.text, own),
            prediction_text(at.prediction[0], width=24),
            _GAP.join(prediction_text(other, width=15) for other in at.prediction[1:4]),
            "never" if at.output.decided is None else f"layer {at.output.decided}",
        ]
        for at in positions
    ]
    predicted = "predicted next" if of_next else "predicted there"
    return Table((">position", "token", predicted, "then", "decided in"), rows, (8, 20, 24, 50, 10)).lines()


def layer_lines(
    at: Position, places: Sequence[Sequence[LayerState]], memories: int, *, where: str = "after"
) -> list[str]:
    """`places[layer]` has the positions from the prompt's first token on."""
    token = cut(show_token(at.token.text), 30)
    lines = [f"Layer by layer {where} position {at.position}, {token}: what is on top, and who contributes most"]
    columns = (">layer", "residual", "feed-forward", "output", "event", ">active", "share memory → vote")
    rows = []
    for layer, row in enumerate(places):
        state = row[at.position - row[0].position]
        streams = (prediction_text(best[0], width=15) for best in (state.residual, state.ffn, state.output))
        start = [str(layer), *streams, state.event, str(state.active)]
        dominant = [
            f"{one.share:5.1%} {'+' if one.sign > 0 else '-'}{one.memory} → {show_token(one.vote.text)}"
            for one in state.memories[:memories]
        ]
        for text in dominant or ["(none)"]:
            rows.append([*start, text])
            start = [""] * len(start)
    return [*lines, *Table(columns, rows, (5, 16, 16, 16, 11, 6, 40)).lines()]


def sum_lines(at: Position, written: LogitSum) -> list[str]:
    token = cut(show_token(at.prediction[0].token.text), 30)
    lines = [
        f"Who wrote {token}, {written.logit_above_mean:.2f} above the mean logit: embedding"
        f" {written.embedding_above_mean:+.2f}, biases {written.bias_above_mean:+.2f}"
        + (f", other blocks {written.rest_above_mean:+.2f}" if abs(written.rest_above_mean) >= 0.005 else "")
    ]
    columns = (">layer", ">attention", ">memories", ">positions", "attends to (mean over heads)")
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
    return [*lines, *Table(columns, rows, (5, 9, 8, 9, 80)).lines()]


def _attended_text(one: AttendedToken) -> str:
    where = "" if one.position is None else f"@{one.position}"
    return f"{cut(show_token(one.token.text), 12)}{where} {one.weight:.0%}"
