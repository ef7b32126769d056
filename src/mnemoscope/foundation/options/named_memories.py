"""Memories as people name them: `L3` (a layer), `L5.M0-19`, `L5.M7,L6.M1`, or `@FILE`, a list that was saved.

The one reader and the one writer of lists. A list belongs to the model in which it was found.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mnemoscope.errors import MemoryIdError, ModelDiffers, OptionError
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.foundation.formatting import json_safe
from mnemoscope.foundation.memory_names import MemoryId, Numbering

_FORM = re.compile(r"L([0-9]{1,6})(?:\.([ES])([0-9]{1,6}))?(?:\.M([0-9]{1,9})(?:-([0-9]{1,9}))?)?")
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
        if ends[1] < ends[0]:
            raise MemoryIdError(f"{ends[0]}-{last} ends before it begins; write the lower number first")
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
