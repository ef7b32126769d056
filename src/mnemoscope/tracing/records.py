"""What a trace is made of: plain records of what every layer predicts at every position, ready for JSON.

No number is computed here, except when a prediction was made, which is read off the layers' top tokens. trace.py makes
them and holds them together; drawing is rendering.py.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from mnemoscope.foundation.memory_names import MemoryId


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass that can be JSON."""

    spread: ClassVar[str] = ""
    """The first field, where its own fields stand in its place in JSON."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON, in order."""
        names: tuple[str, ...] = self.__slots__
        found = {name: plain(getattr(self, name)) for name in names}
        return {**found.pop(self.spread, {}), **found}


def plain(value: Any) -> Any:
    """The value for JSON: records as dictionaries, tuples as lists, memories by name."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, MemoryId) else value


@dataclass(frozen=True, slots=True)
class Token(Record):
    """One token: its id, and its text as it appears in running text (empty for a row of the head without a token)."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Prediction(Record):
    """A token with the probability that it is given."""

    spread = "token"

    token: Token
    probability: float


@dataclass(frozen=True, slots=True)
class Dominant(Record):
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


@dataclass(frozen=True, slots=True)
class LayerState(Record):
    """One layer at one position: what residual, update and output predict (`lens`, best first), and who made it.

    `event` is the class of Figure 11. `ffn_vote` is the update's top token under the values' projection. `active`
    counts m_i > 0; `effective`, `top_share` and `major` are as in definitions.md section 4 (layer_activity).
    """

    layer: int
    position: int
    residual: tuple[Prediction, ...]
    ffn: tuple[Prediction, ...]
    output: tuple[Prediction, ...]
    event: str
    ffn_vote: Token
    active: int
    effective: float
    top_share: float
    major: int
    memories: tuple[Dominant, ...]


@dataclass(frozen=True, slots=True)
class Decision(Record):
    """When one kind of stream has the model's own prediction on top: first at all, and from when on for good.

    Both are layers, or None where the last layer's stream does not have it (the output of the last layer always has,
    unless blocks without a feed-forward layer come after it).
    `first` may be a layer that later ones contradict.
    """

    first: int | None
    decided: int | None


@dataclass(frozen=True, slots=True)
class Position(Record):
    """One token of the prompt, what the model predicts after it (best first), and when that was decided."""

    position: int
    token: Token
    prediction: tuple[Prediction, ...]
    residual: Decision
    output: Decision


def decision(tops: list[int], final: int) -> Decision:
    """When a stream whose top token by layer is `tops` has `final` on top: first, and for good."""
    first = tops.index(final) if final in tops else None
    decided = len(tops)
    while decided and tops[decided - 1] == final:
        decided -= 1
    return Decision(first, None if decided == len(tops) else decided)
