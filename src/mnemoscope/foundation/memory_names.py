"""The project's noun: one memory of a feed-forward layer, its name, and the bins of its coefficients.

A memory is the pair (key, value) of index `memory` in layer `layer`, both counted from 0, written `L10.M222`; in a
routed expert `L10.E3.M222`, in a shared one `L10.S0.M5`. Many are named by layer, expert or range (`L3`, `L5.M0-19`),
or by a list that was saved (`@FILE`), which belongs to the model in which it was found. Holds no weights.

Axis names used everywhere: batch, position, layer, memory, hidden, vocab, rank (docs/terminology.md).
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mnemoscope.errors import MemoryIdError, ModelDiffers, OptionError
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.foundation.formatting import json_safe

HISTOGRAM_EDGES: tuple[float, ...] = (
    *(-(2.0**power) for power in range(6, -11, -1)),
    0.0,
    *(2.0**power for power in range(-10, 7)),
)
"""Edges of the bins of coefficients: `edges[i-1] <= x < edges[i]`; the outer bins are open."""
HISTOGRAM_BINS = len(HISTOGRAM_EDGES) + 1
ZERO_BIN = HISTOGRAM_EDGES.index(0.0) + 1
"""The bin from zero to the least positive edge; also the number of bins below zero."""

ABLATED_PARTS: tuple[float, ...] = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.9375, 1.0)
"""Shares of a layer's memories that are ablated to measure the width it needs; of n memories `int(part * n)`."""
EXIT_THRESHOLDS: tuple[float, ...] = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Probabilities of a residual's top token above which a token could exit there."""
MEMORISED_TOKENS, MEMORISED_GIVEN = 64, 32
"""Of a document's first MEMORISED_TOKENS tokens the model sees MEMORISED_GIVEN; memorised if it writes all others."""

_FORM = re.compile(r"L([0-9]{1,6})(?:\.([ES])([0-9]{1,6}))?(?:\.M([0-9]{1,9})(?:-([0-9]{1,9}))?)?")
"""A layer or one of its experts, and there one memory, or the first and the last of some."""


@dataclass(frozen=True)
class MemoryId:
    """A memory's place; sorts by layer, expert (routed before shared), memory. At most one of the experts is set."""

    layer: int
    memory: int
    expert: int | None = None
    shared: int | None = None

    @staticmethod
    def is_one(text: str) -> bool:
        """Whether the text names one memory, which need not exist."""
        match = _FORM.fullmatch(text.strip())
        return match is not None and match[4] is not None and match[5] is None

    @staticmethod
    def parse(text: str) -> "MemoryId":
        """The memory that `text` names, such as `L10.M222`; raises MemoryIdError for anything else."""
        match = _FORM.fullmatch(text.strip())
        if match is None or match[4] is None or match[5] is not None:
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise MemoryIdError(f"{shown!r} does not name a memory; write one as L10.M222 (layer 10, memory 222)")
        layer, kind, expert, memory, _ = match.groups()
        routed, shared = (int(expert) if kind == letter else None for letter in "ES")
        return MemoryId(int(layer), int(memory), routed, shared)

    def __str__(self) -> str:
        return f"L{self.layer}{self.expert_text}.M{self.memory}"

    @property
    def expert_text(self) -> str:
        """The expert's part of the name, such as `.E3`; empty in a dense layer."""
        if self.shared is not None:
            return f".S{self.shared}"
        return "" if self.expert is None else f".E{self.expert}"

    def _order(self) -> tuple[int, int, int, int]:
        routed, shared = (-1 if number is None else number for number in (self.expert, self.shared))
        return self.layer, shared, routed, self.memory

    def __lt__(self, other: "MemoryId") -> bool:
        return self._order() < other._order()


@dataclass(frozen=True)
class Numbering:
    """Numbers one layer's memories from 0: those of each routed expert in turn, then of each shared one.

    `widths` are the memories of each expert; a dense layer has one, and `routed` None.
    """

    widths: tuple[int, ...]
    routed: int | None = None

    @staticmethod
    def of(document: Mapping[str, Any] | None, count: int) -> "Numbering":
        """The numbering of a `document`, or of a dense layer with `count` memories."""
        if document is None:
            return Numbering((count,))
        routed = int(document["routed"])
        return Numbering((int(document["memories"]),) * routed + tuple(document["shared"]), routed)

    def document(self) -> dict[str, Any] | None:
        if self.routed is None:
            return None
        width = self.widths[0] if self.routed else 0
        return {"routed": self.routed, "memories": width, "shared": list(self.widths[self.routed :])}

    @property
    def count(self) -> int:
        return sum(self.widths)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.widths[:-1]))

    def name(self, layer: int, number: int) -> MemoryId:
        if self.routed is None:
            return MemoryId(layer, number)
        expert = int(self.experts(np.array([number]))[0])
        return self.name_in(layer, expert, number - self.firsts[expert])

    def name_in(self, layer: int, expert: int | None, memory: int) -> MemoryId:
        """The memory of a table's row, whose `expert` counts routed, then shared experts; None in a dense layer."""
        if expert is None or self.routed is None:
            return MemoryId(layer, memory)
        if expert < self.routed:
            return MemoryId(layer, memory, expert)
        return MemoryId(layer, memory, shared=expert - self.routed)

    def number(self, memory: MemoryId) -> int | None:
        """None for a memory that the layer does not have."""
        expert = (memory.expert or 0) if memory.shared is None else (self.routed or 0) + memory.shared
        if not (0 <= expert < len(self.widths) and 0 <= memory.memory < self.widths[expert]):
            return None
        number = self.firsts[expert] + memory.memory
        return number if self.name(memory.layer, number) == memory else None

    def experts(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        return (np.searchsorted(self.firsts, numbers, side="right") - 1).astype(np.int16)

    def within(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        within: NDArray[np.int32] = (numbers - np.array(self.firsts)[self.experts(numbers)]).astype(np.int32)
        return within

    def range_text(self) -> str:
        """The memories in words: `memories 0-1023`, `experts E0-E7 with memories 0-511`."""
        if self.routed is None:
            return f"memories 0-{self.count - 1}"
        parts = [f"experts E0-E{self.routed - 1} with memories 0-{self.widths[0] - 1}"] if self.routed else []
        parts += [f"S{i} with 0-{width - 1}" for i, width in enumerate(self.widths[self.routed :])]
        return " and ".join(parts)


def most_experts(numberings: Iterable[Numbering]) -> tuple[int, int]:
    mixtures = [(one.routed, len(one.widths) - one.routed) for one in numberings if one.routed is not None]
    return max((routed for routed, _ in mixtures), default=0), max((shared for _, shared in mixtures), default=0)


Listed = tuple[MemoryId | str, int, float | None]
"""A memory, the sign of its coefficient, and its weight."""


class HasMemories(Protocol):
    """A model, or an atlas."""

    @property
    def spec(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    def numbering(self, layer: int) -> Numbering: ...


@dataclass(frozen=True)
class NamedMemories:
    """The parts of a `text` that names memories, each the groups of _FORM; a list's `model` and its fingerprints."""

    text: str
    parts: tuple[tuple[str | None, ...], ...]
    model: str = ""
    fingerprints: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> "NamedMemories":
        """Raises MemoryIdError for text that names no memories, and OptionError for a file that is no list of them."""
        names, stated = list[Any](text.split(",")), dict[str, Any]()
        if text.startswith("@"):
            stated = read_object(Path(text[1:]))
            listed = stated.get("memories")
            names = [one.get("memory") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            if not names or not all(isinstance(each, str) for each in (stated.get("model"), *_prints(stated), *names)):
                raise OptionError(f"{text[1:]} is no list of memories; name a list that was saved")
        parts = []
        for name in names:
            match = _FORM.fullmatch(name.strip())
            if match is None:
                shown = name if len(name) <= 40 else f"{name[:40]}..."
                raise MemoryIdError(
                    f"{shown!r} does not name a memory; write L10.M222 (layer 10, memory 222), L10.M0-19, L10 or @FILE"
                )
            if match[5] is not None and int(match[5]) < int(match[4]):
                raise MemoryIdError(f"{name.strip()} ends before it begins; write the lower number first")
            parts.append(match.groups())
        return NamedMemories(text, tuple(parts), stated.get("model", ""), _prints(stated) if stated else ())

    def of(self, holder: HasMemories) -> list[MemoryId]:
        """The memories, each once, in their order. Raises MemoryIdError for those that the model or atlas does not
        have, and ModelDiffers for a list of another model.
        """
        if self.fingerprints and holder.fingerprint not in self.fingerprints:
            raise ModelDiffers(
                f"{self.text[1:]} lists memories of {self.model}, another model than {holder.spec} (fingerprint"
                f" {self.fingerprints[0][:12]}..., not {holder.fingerprint[:12]}...); save a list of this one"
            )
        return list(dict.fromkeys(memory for part in self.parts for memory in _expand(part, holder)))


def _prints(stated: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fingerprints of a list's models: of `diff` it is both models'."""
    origin = stated.get("made_by")
    both = origin.get("model") if isinstance(origin, dict) else None
    return (stated.get("fingerprint"), *(both if isinstance(both, list) else ()))


def _expand(part: tuple[str | None, ...], holder: HasMemories) -> Iterable[MemoryId]:
    layer, kind, expert, first, last = part
    numbering, place = holder.numbering(int(layer or 0)), int(layer or 0)
    routed, shared = (int(expert or 0) if kind == letter else None for letter in "ES")
    if first is None:
        every = [numbering.name(place, number) for number in range(numbering.count)]
        of_expert = [one for one in every if (one.expert, one.shared) == (routed, shared)]
        memories: Iterable[MemoryId] = of_expert if kind else every
        missing = None if memories else f"L{place}.{kind}{expert}"
    else:
        ends = [MemoryId(place, int(end), routed, shared) for end in (first, last or first)]
        memories = (MemoryId(place, at, routed, shared) for at in range(ends[0].memory, ends[1].memory + 1))
        missing = next((str(end) for end in ends if numbering.number(end) is None), None)
    if missing is not None:
        raise MemoryIdError(f"{missing} is not in {holder.spec}, whose layer {place} has {numbering.range_text()}")
    return memories


def save_list(
    path: str | os.PathLike[str], memories: Iterable[Listed], *, model: str, made_by: Mapping[str, Any]
) -> Path:
    """Writes a list of memories, each once, which `@FILE` names; of two models it is the last's. Raises StoreFailed."""
    prints, firsts = made_by["model"], dict[str, dict[str, Any]]()
    for memory, sign, weight in memories:
        firsts.setdefault(str(memory), {"memory": str(memory), "sign": sign, "weight": weight})
    fingerprint = prints if isinstance(prints, str) else prints[-1]
    document = {"model": model, "fingerprint": fingerprint, "memories": list(firsts.values()), "made_by": dict(made_by)}
    write_json(Path(path), json_safe(document))
    return Path(path)
