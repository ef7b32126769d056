"""Changes coefficients while a model runs: sets, scales or zeroes memories at all positions, the last, or from one on.

An intervention is written `L10.M222=0`, `L10.M222*2`, `L10.M222=0@last` or `L10.M222=1.5@5`. They are removed when the
block ends, also after an exception, and act only in the thread that entered the block.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.errors import InterventionError, MemoryIdError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions
from mnemoscope.models import LanguageModel, overwrite_coefficients

How = Literal["set", "scale"]
At = Literal["all", "last"] | int
"""All of the prompt's own positions, the last one, or every one from this one on."""

_FORM = re.compile(r"\s*(?P<memory>[^=*@\s]+)\s*(?P<how>[=*])\s*(?P<value>[^@\s]+)\s*(?:@\s*(?P<at>\S+)\s*)?")
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
        """The intervention of `text`; raises InterventionError for anything else."""
        match = _FORM.fullmatch(text)
        try:
            if match is None:
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


def interventions_of(given: Interventions, *, how: How = "set", at: At = "all") -> tuple[Intervention, ...]:
    """The changes, in order; `how` and `at` apply to bare numbers. Raises InterventionError."""
    if given is None:
        return ()
    if isinstance(given, str):
        raise InterventionError(f"{given!r} is one text; give a list of such texts, or a dictionary")
    if not isinstance(given, Mapping):
        return tuple(one if isinstance(one, Intervention) else Intervention.parse(one) for one in given)
    changes = []
    for name, value in given.items():
        try:
            memory = name if isinstance(name, MemoryId) else MemoryId.parse(name)
        except MemoryIdError as error:
            raise InterventionError(str(error)) from None
        if isinstance(value, Intervention) and value.memory != memory:
            raise InterventionError(f"the change {value} is given for {memory}; give it for the memory that it names")
        changes.append(value if isinstance(value, Intervention) else Intervention(memory, how, value, at))
    return tuple(changes)


def check(model: LanguageModel, changes: Sequence[Intervention]) -> None:
    sizes = model.sizes
    for change in changes:
        memory = change.memory
        if memory.expert_text and not model.numberings:
            raise InterventionError(f"{memory} names an expert, but {model.spec} has none; write L{memory.layer}.M...")
        if memory.layer >= sizes.layers:
            raise InterventionError(
                f"{memory} is outside the model, which has layers 0 to {sizes.layers - 1}; name one of them"
            )
        numbering = model.numbering(memory.layer)
        if numbering.number(memory) is None:
            has = f"memories 0 to {numbering.count - 1}" if numbering.routed is None else numbering.range_text()
            raise InterventionError(
                f"{memory} is outside the model: its layer {memory.layer} has {has}; name one of them"
            )
        if isinstance(change.at, int) and change.at >= model.longest:
            raise InterventionError(
                f"{change} begins at position {change.at}, but the model reads {model.longest} tokens; begin earlier"
            )
        if abs(change.value) > torch.finfo(model.dtype).max:
            raise InterventionError(f"{change} is beyond what {model.dtype} can hold; choose a smaller number")


@contextmanager
def intervene(
    model: LanguageModel, interventions: Interventions, *, at: At = "all", how: How = "set"
) -> Iterator[tuple[Intervention, ...]]:
    """Changes the coefficients of memories inside the block; yields the changes made.

        with ms.intervene(model, {"L10.M222": 0.0}):
            trace = ms.trace(model, "The capital of France is")

    `set` replaces the coefficient by the number, `scale` multiplies it. Positions count the tokens after the beginning
    token, whose own position is never changed; the model must run on whole sequences that begin with it, as all
    functions here do. `last` is the last position of each run, so in generation the current last. Changes apply in
    order, and nested blocks compose: the inner one sees the result of the outer one. Only the thread that entered the
    block is changed; others may run the model unchanged. Raises InterventionError before anything is changed.
    """
    with model.in_use(compare=True, steadily=False):
        changes = interventions_of(interventions, how=how, at=at)
        check(model, changes)
        with overwrite_coefficients(model, _by_layer(model, changes)):
            yield changes


def _by_layer(model: LanguageModel, changes: Sequence[Intervention]) -> dict[int, Callable[[Tensor], Tensor]]:
    by_layer: dict[int, list[tuple[int, Intervention]]] = {}
    for change in changes:
        number = model.numbering(change.memory.layer).number(change.memory)
        assert number is not None
        by_layer.setdefault(change.memory.layer, []).append((number, change))
    first, thread = model.reading.offset, get_ident()
    return {layer: _overwrite(model, own, first=first, thread=thread) for layer, own in by_layer.items()}


def _overwrite(
    model: LanguageModel, changes: list[tuple[int, Intervention]], *, first: int, thread: int
) -> Callable[[Tensor], Tensor]:
    def change_coefficients(coefficients: Tensor) -> Tensor:
        if get_ident() != thread:
            return coefficients
        out = coefficients.clone()
        for number, change in changes:
            place = out[:, _columns(change.at, first=first - model.begun, length=out.shape[1]), number]
            (place.fill_ if change.how == "set" else place.mul_)(change.value)
        return out

    return change_coefficients


def _columns(at: At, *, first: int, length: int) -> slice:
    """The positions of a run that a change covers; never that of the beginning token, which is before `first`."""
    start = length - 1 if at == "last" else first + (0 if at == "all" else int(at))
    return slice(max(first, start, 0), length)


def as_python(model: str, prompt: str, interventions: Interventions, *, opening: ModelOptions = AS_USUAL) -> str:
    """A Python script that traces the prompt with these changes, and without them if there are any."""
    changes = interventions_of(interventions)
    lines = ["import mnemoscope as ms", "", opening.python_line(model), f"prompt = {prompt!r}"]
    lines.append("print(ms.trace(model, prompt))")
    if changes:
        lines += ["", "changes = [", *(f"    {str(change)!r}," for change in changes), "]"]
        lines += ["with ms.intervene(model, changes):", "    print(ms.trace(model, prompt))"]
    return "\n".join(lines) + "\n"
