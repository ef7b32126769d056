"""The changes of memories' coefficients that people ask for: their notation and its checks, without a model.

An intervention is written `L10.M222=0`, `L10.M222*2`, `L10.M222=0@last` or `L10.M222=1.5@5`; of many memories
`L3=0`, `L5.M0-19*2`, `@FILE=0`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mnemoscope.errors import InterventionError, MemoryIdError
from mnemoscope.foundation.memory_names import HasMemories, MemoryId, NamedMemories

How = Literal["set", "scale"]
At = Literal["all", "last"] | int
"""All of the prompt's own positions, the last one, or every one from this one on."""

_FORM = re.compile(
    r"\s*(?P<memory>[^=*@\s]+)\s*(?P<how>[=*])\s*(?P<value>[^@\s]+)\s*(?:@\s*(?P<at>all|last|-?[0-9]{1,9})\s*)?"
)
_MANY = re.compile(r"\s*(@.+|L[^=*@]+?)\s*([=*][^=*]*)")
"""Many memories, and what is done to them."""
_SIGNS: dict[str, How] = {"=": "set", "*": "scale"}


@dataclass(frozen=True)
class Intervention:
    """One change of one memory's coefficient: `set` it to `value`, or `scale` it by `value`, at some positions."""

    memory: MemoryId
    how: How = "set"
    value: float = 0.0
    at: At = "all"

    def __post_init__(self) -> None:
        if self.how not in ("set", "scale"):
            raise InterventionError(f"{self.memory} cannot be changed by {self.how!r}; choose set or scale")
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            done = "set to" if self.how == "set" else "scaled by"
            raise InterventionError(f"{self.memory} cannot be {done} {self.value!r}; give a finite number")
        whole = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at >= 0
        if not whole and self.at not in ("all", "last"):
            raise InterventionError(
                f"{self.memory} cannot be changed at {self.at!r}; choose all, last, or a position from 0 on"
            )

    @staticmethod
    def parse(text: str) -> "Intervention":
        """The intervention of `text`."""
        match = _FORM.fullmatch(text)
        try:
            if match is None or not text.isascii():  # float() reads digits of other scripts
                raise ValueError
            at = match["at"] or "all"
            place: At = at if at in ("all", "last") else int(at)  # type: ignore[assignment]
            return Intervention(MemoryId.parse(match["memory"]), _SIGNS[match["how"]], float(match["value"]), place)
        except (ValueError, MemoryIdError):
            raise InterventionError(
                f"{text!r} is not a change of a memory; write one as L10.M222=0, L10.M222*2, L10.M222=0@last or "
                "L10.M222=0@5 (from position 5 on)"
            ) from None

    def __str__(self) -> str:
        number = repr(float(self.value)).removesuffix(".0")
        sign = "=" if self.how == "set" else "*"
        return f"{self.memory}{sign}{number}" + ("" if self.at == "all" else f"@{self.at}")


Interventions = (
    Mapping[str, "float | Intervention"]
    | Mapping[MemoryId, "float | Intervention"]
    | Iterable["Intervention | str"]
    | None
)
"""Forms of a list of changes: `{"L10.M222": 0.0}`, `["L10.M222=0"]`, or Intervention objects."""


def interventions_of(
    given: Interventions, *, of: HasMemories | None = None, how: How = "set", at: At = "all"
) -> tuple[Intervention, ...]:
    """The changes, in order; `how` and `at` apply to bare numbers. Many memories (`L3=0`, `@FILE=0`) are those of the
    model `of`; without one their names are only checked.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        raise InterventionError(f"{given!r} is one text; give a list of such texts, or a dictionary")
    if not isinstance(given, Mapping):
        return tuple(change for one in given for change in ([one] if isinstance(one, Intervention) else _read(one, of)))
    changes = []
    for name, value in given.items():
        try:
            memories = [name] if isinstance(name, MemoryId) else _memories(name, of)
        except MemoryIdError as error:
            raise InterventionError(str(error)) from None
        for memory in memories:
            if isinstance(value, Intervention) and value.memory != memory:
                raise InterventionError(f"the change {value} is given for {memory}; give it for the one that it names")
            changes.append(value if isinstance(value, Intervention) else Intervention(memory, how, value, at))
    return tuple(changes)


def _memories(name: str, of: HasMemories | None) -> list[MemoryId]:
    if MemoryId.is_one(name):
        return [MemoryId.parse(name)]
    named = NamedMemories.parse(name)
    return [] if of is None else named.of(of)


def _read(text: str, of: HasMemories | None) -> list[Intervention]:
    many = _MANY.fullmatch(text)
    try:
        if many is None or MemoryId.is_one(many[1]):
            raise InterventionError(text)
        change = Intervention.parse(f"L0.M0{many[2]}")
        NamedMemories.parse(many[1])
    except (InterventionError, MemoryIdError):
        return [Intervention.parse(text)]  # which says how changes are written
    return [replace(change, memory=memory) for memory in _memories(many[1], of)]


def counted_from(changes: Iterable[Intervention], first: int) -> tuple[Intervention, ...]:
    """The changes with positions that count all tokens of a prompt whose first token has position `first`."""
    return tuple(replace(one, at=one.at - first) if isinstance(one.at, int) else one for one in changes)
