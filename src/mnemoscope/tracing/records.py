"""What a trace holds: plain records of what every layer predicts at every position, ready for JSON.

No number is computed here, except when a prediction was made, which is read off the layers' top tokens. Drawing is
terminal.py and notebook.py.
"""

from dataclasses import dataclass
from typing import Any

from mnemoscope.memory import MemoryId
from mnemoscope.tracing.interventions import Intervention
from mnemoscope.tracing.prompts import Guess, Token


@dataclass(frozen=True, slots=True)
class Dominant:
    """One of the memories that contribute most at a place: `contribution` is |m| norm(v), `share` its part of the sum.

    `vote` is top(sign(m) v) under the values' projection; `agrees` says whether it is what the whole update votes for.
    """

    memory: MemoryId
    coefficient: float
    sign: int
    contribution: float
    share: float
    vote: Token
    agrees: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "memory": str(self.memory),
            "coefficient": self.coefficient,
            "sign": self.sign,
            "contribution": self.contribution,
            "share": self.share,
            "vote": self.vote.to_dict(),
            "agrees": self.agrees,
        }


@dataclass(frozen=True, slots=True)
class Place:
    """One layer at one position: what residual, update and output predict (`lens`, best first), and who made it.

    `event` is the class of Figure 11. `ffn_vote` is the update's top token under the values' projection. `active`
    counts m_i > 0; `effective`, `top_share` and `major` are as in definitions.md section 4 (layer_activity).
    """

    layer: int
    position: int
    residual: tuple[Guess, ...]
    ffn: tuple[Guess, ...]
    output: tuple[Guess, ...]
    event: str
    ffn_vote: Token
    active: int
    effective: float
    top_share: float
    major: int
    memories: tuple[Dominant, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "layer": self.layer,
            "position": self.position,
            **{name: [guess.to_dict() for guess in getattr(self, name)] for name in ("residual", "ffn", "output")},
            "event": self.event,
            "ffn_vote": self.ffn_vote.to_dict(),
            "active": self.active,
            "effective": self.effective,
            "top_share": self.top_share,
            "major": self.major,
            "memories": [memory.to_dict() for memory in self.memories],
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """When one kind of stream has the model's own prediction on top: first at all, and from when on for good.

    Both are layers, or None where the last layer's stream does not have it (the output of the last layer always has).
    `first` may be a layer that later ones contradict.
    """

    first: int | None
    decided: int | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"first": self.first, "decided": self.decided}


@dataclass(frozen=True, slots=True)
class Position:
    """One token of the prompt, what the model predicts after it (best first), and when that was decided."""

    position: int
    token: Token
    prediction: tuple[Guess, ...]
    residual: Decision
    output: Decision

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "position": self.position,
            "token": self.token.to_dict(),
            "prediction": [guess.to_dict() for guess in self.prediction],
            "residual": self.residual.to_dict(),
            "output": self.output.to_dict(),
        }


@dataclass(frozen=True)
class Trace:
    """A prompt's way through the layers; `places[layer][position]`, both from 0. Prints as a table, also in notebooks.

    `interventions` are the changes that the trace was asked to make; those of a block around it are not known to it.
    """

    model: str
    fingerprint: str
    prompt: str
    beginning: Token | None
    positions: tuple[Position, ...]
    places: tuple[tuple[Place, ...], ...]
    interventions: tuple[Intervention, ...] = ()

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The prompt's own tokens."""
        return tuple(position.token for position in self.positions)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain JSON: tokens with id and text, probabilities, memories by name."""
        return {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "prompt": self.prompt,
            "beginning": None if self.beginning is None else self.beginning.to_dict(),
            "interventions": [str(change) for change in self.interventions],
            "positions": [position.to_dict() for position in self.positions],
            "layers": [
                {"layer": layer, "positions": [place.to_dict() for place in places]}
                for layer, places in enumerate(self.places)
            ],
        }

    def text(self, *, position: int | None = None, memories: int = 3) -> str:
        """The trace as text of at most 118 columns: every position's prediction, and one position's layers.

        `position` counts from 0; negative ones from the end, and None is the last. Raises PromptError for a position
        that the prompt does not have.
        """
        from mnemoscope.tracing.terminal import drawn

        return drawn(self, position=position, memories=memories)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from mnemoscope.tracing.notebook import page

        return page(self)


def decision(tops: list[int], final: int) -> Decision:
    """When a stream whose top token by layer is `tops` has `final` on top: first, and for good."""
    first = tops.index(final) if final in tops else None
    decided = len(tops)
    while decided and tops[decided - 1] == final:
        decided -= 1
    return Decision(first, None if decided == len(tops) else decided)
