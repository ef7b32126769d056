"""What a trace is made of: plain records of what every layer predicts at every position, ready for JSON.

No number is computed here, except when a prediction was made, which is read off the layers' top tokens. trace.py holds
them together; drawing is terminal.py and notebook.py.
"""

from dataclasses import dataclass
from typing import Any

from mnemoscope.memory import MemoryId
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


def decision(tops: list[int], final: int) -> Decision:
    """When a stream whose top token by layer is `tops` has `final` on top: first, and for good."""
    first = tops.index(final) if final in tops else None
    decided = len(tops)
    while decided and tops[decided - 1] == final:
        decided -= 1
    return Decision(first, None if decided == len(tops) else decided)
