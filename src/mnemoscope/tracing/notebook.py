"""A trace as HTML for a notebook: one table, layers by tokens, and the memories of the last position.

Self-contained: inline styles, no script, nothing fetched; every text is escaped. The page of `mnemoscope serve` draws
its own.
"""

from collections.abc import Sequence
from html import escape

from mnemoscope.atlas.visible import in_token
from mnemoscope.tracing.interventions import Intervention
from mnemoscope.tracing.prompts import Guess
from mnemoscope.tracing.records import Dominant, Place, Position

_CELL = "padding:2px 6px;white-space:nowrap;text-align:left;color:inherit"
_SHOWN = 5


def trace_html(
    model: str,
    positions: Sequence[Position],
    places: Sequence[Sequence[Place]],
    interventions: Sequence[Intervention],
) -> str:
    """The HTML of a trace; `places[layer][position]`."""
    changes = ", ".join(map(str, interventions))
    about = f"{model}: {len(positions)} tokens, {len(places)} layers"
    lines = [
        '<div style="overflow-x:auto;font-size:90%">',
        f"<p>{escape(about)}{escape(' with ' + changes) if changes else ''}. Each cell: what the layer's output "
        "predicts after the token; the darker, the more probable the model's final prediction is among its best.</p>",
        '<table style="border-collapse:collapse">',
        _row("layer", [in_token(at.token.text) for at in positions], tag="th"),
    ]
    for layer in reversed(range(len(places))):
        cells = "".join(
            _cell(place, at.prediction[0].token.id) for place, at in zip(places[layer], positions, strict=True)
        )
        lines.append(f'<tr><th scope="row" style="{_CELL}">{layer}</th>{cells}</tr>')
    lines += ["</table>", *_memories(positions[-1], places), "</div>"]
    return "\n".join(lines)


def _row(head: str, texts: list[str], *, tag: str = "td") -> str:
    cells = "".join(f'<{tag} style="{_CELL}">{escape(text)}</{tag}>' for text in texts)
    return f'<tr><th style="{_CELL}">{escape(head)}</th>{cells}</tr>'


def _cell(place: Place, final: int) -> str:
    share = next((guess.probability for guess in place.output if guess.token.id == final), 0.0)
    told = "\n".join(
        f"{name}: " + ", ".join(_prediction_text(guess) for guess in guesses[:_SHOWN])
        for name, guesses in (("residual", place.residual), ("feed-forward", place.ffn), ("output", place.output))
    )
    title = escape(f"layer {place.layer}, {place.event}\n{told}", quote=True)
    style = f"{_CELL};background:rgba(31,119,180,{0.6 * min(1.0, share):.3f})"
    return f'<td style="{style}" title="{title}">{escape(in_token(place.output[0].token.text))}</td>'


def _prediction_text(guess: Guess) -> str:
    return f"{in_token(guess.token.text)} {guess.probability:.3f}"


def _memories(last: Position, places: Sequence[Sequence[Place]]) -> list[str]:
    lines = [
        f"<p>After position {last.position}, {escape(in_token(last.token.text))}: "
        "the memories that contribute most (share of the layer's contributions, memory, vote).</p>",
        '<table style="border-collapse:collapse">',
    ]
    for layer in reversed(range(len(places))):
        place = places[layer][-1]
        lines.append(_row(str(layer), [place.event, *(_dominant(one) for one in place.memories[:_SHOWN])]))
    return [*lines, "</table>"]


def _dominant(one: Dominant) -> str:
    return f"{one.share:.1%} {'+' if one.sign > 0 else '-'}{one.memory} → {in_token(one.vote.text)}"
