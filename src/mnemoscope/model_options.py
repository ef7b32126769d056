"""How a MODEL is opened, beside its name: one set of options for every verb, for `load_model` and for the plan.

The command line fills `ModelOptions`, `load_model` builds one of its arguments, a plan of mining holds what decides
numbers, and every command or script that is shown to a reader is made from it. Knows no model, and needs no torch.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is said of a model beside its name, its number format and its device; all of it may be left out."""

    revision: str | None = None
    """The branch, tag or commit of the model on the hub; not of its adapter or of another tokenizer."""
    adapter: str | None = None
    """The folder or hub id of a PEFT adapter that is put on the model."""
    tokenizer: str | None = None
    """The folder or hub id of the tokenizer that takes the place of the model's own; `ids`: texts are token ids."""
    dequantize: bool = False
    """Whether quantised weights are widened when they are loaded."""
    dictionary: str | os.PathLike[str] | None = None
    """The `dict.txt` of a fairseq checkpoint, where it does not lie beside it."""
    trust_remote_code: bool = False

    def spec_of(self, source: str) -> str:
        """What the model of that name is called with its adapter: `gpt2+my-adapter`."""
        return source if self.adapter is None else f"{source}+{self.adapter}"

    def keywords(self) -> dict[str, Any]:
        """Those that are not as usual, as arguments of `load_model`."""
        values = {_KEYWORDS.get(name, name): value for name, value in self._unusual().items()}
        return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in values.items()}

    def words(self) -> list[str]:
        """Those that are not as usual, as words of a command line."""
        found: list[str] = []
        for keyword, value in self.keywords().items():
            found.append(f"--{keyword.replace('_', '-')}")
            found += [] if value is True else [shlex.quote(str(value))]
        return found

    def plan_entries(self) -> dict[str, Any]:
        """Those that a plan of mining holds, by their names there."""
        return {name: getattr(self, name) for name in PLANNED}

    def or_planned(self, plan: Mapping[str, Any]) -> "ModelOptions":
        """These, and what a plan holds in place of those that were left out."""
        own = self._unusual()
        return replace(self, **{name: plan[name] for name in PLANNED if name in plan and name not in own})

    def _unusual(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False)}


AS_USUAL = ModelOptions()
"""Nothing said."""
PLANNED = ("revision", "adapter", "tokenizer", "dequantize")
"""What is part of a plan: `dict.txt` is known by its content there, and code by its text."""
_KEYWORDS = {"dictionary": "dict"}
"""Fields whose option has another name."""
