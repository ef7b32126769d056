"""Plain records of a trace: what every layer predicts at every position, ready for JSON.

Computes nothing except when a prediction was decided, from the layers' top tokens. trace.py makes the records;
rendering.py draws them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from mnemoscope.foundation.memory_names import MemoryId


@dataclass(frozen=True, slots=True)
class Record:
    spread: ClassVar[str] = ""
    """The first field, if JSON holds its own fields in its place."""

    def to_dict(self) -> dict[str, Any]:
        names: tuple[str, ...] = self.__slots__
        fields = {name: plain(getattr(self, name)) for name in names}
        return {**fields.pop(self.spread, {}), **fields}


def plain(value: Any) -> Any:
    """The value for JSON: records as dictionaries, frames and tuples as lists, memories by name."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, pl.DataFrame):
        return value.to_dicts()
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, MemoryId) else value


@dataclass(frozen=True, slots=True)
class Token(Record):
    """A token's id, and its text as in running text (empty for a row of the head without a token)."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Prediction(Record):
    spread = "token"

    token: Token
    probability: float


@dataclass(frozen=True, slots=True)
class Dominant(Record):
    """One of the most contributing memories at a place: `contribution` is |m| norm(v), `share` its part of the sum.

    `vote` is top(sign(m) v) under the values' projection; `agrees`: it equals the vote of the whole update.
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
    """One layer at one position: what residual, update and output predict (`lens`, best first), and the memories.

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
    """The layer where one kind of stream first has the model's own prediction on top, and from which it keeps it.

    None where the last layer's stream does not have it (the output of the last layer always has, unless blocks without
    a feed-forward layer follow). Later layers may contradict `first`.
    """

    first: int | None
    decided: int | None


@dataclass(frozen=True, slots=True)
class Position(Record):
    """One token of the prompt, the prediction after it (best first), and when that was decided."""

    position: int
    token: Token
    prediction: tuple[Prediction, ...]
    residual: Decision
    output: Decision


def decision(tops: list[int], final: int) -> Decision:
    first = tops.index(final) if final in tops else None
    decided = len(tops)
    while decided and tops[decided - 1] == final:
        decided -= 1
    return Decision(first, None if decided == len(tops) else decided)
