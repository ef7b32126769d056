"""The features of a memory: one for each sign of its coefficient that has triggers, and what its value then promotes
(definitions.md section 2, "two features a memory").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class MemoryFeature:
    """`end` names the tokens that it votes for, `distance` is that of the first one's score from the mean, in standard
    deviations; random directions reach `clear` in one case of a hundred.
    """

    sign: Literal[1, -1]
    end: Literal["top", "bottom"]
    distance: float
    clear: float

    @property
    def promotes(self) -> bool:
        """Whether it promotes its first token; if not, it has no clear token."""
        return self.distance > self.clear


def features_of(value: Mapping[str, Any]) -> list[MemoryFeature]:
    """The features of a memory, of its row of `values`; none in an atlas before schema 3 or without values at work."""
    ends: tuple[tuple[Literal[1, -1], Literal["top", "bottom"], str], ...]
    ends = (1, "top", "working_logit"), (-1, "bottom", "working_logit_negative")
    return [
        MemoryFeature(sign, end, value[f"{end}_z"], value["clear_z"])
        for sign, end, at_work in ends
        if None not in (value[f"{end}_z"], value["clear_z"], value[at_work])
    ]
