"""The address of a trace: prompt, changes, and what of it is looked at. The whole state of the page, and its limits.

Torch-free: what a change is, and whether the model has the memory, is for the model's side to say.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

PROMPT = 2_000
"""Characters of a prompt."""
TOKENS = 256
"""Tokens of a prompt."""
CHANGES = 50
"""Interventions at one time."""
LONGEST = 80
"""Characters of one intervention."""
WRITTEN = 64
"""Tokens that the model writes for one address."""

Stream = Literal["residual", "ffn", "output"]
Cell = Literal["probability", "rank", "token"]
View = Literal["after", "before"]


@dataclass(frozen=True)
class TraceAddress:
    """What the address asks for; `layer` and `position` are None where the page chooses.

    `at` holds for changes that name no position themselves.
    """

    prompt: str | None = None
    changes: tuple[str, ...] = ()
    at: str = "all"
    generate: int = 0
    layer: int | None = None
    position: int | None = None
    stream: Stream = "residual"
    cell: Cell = "probability"
    view: View = "after"

    @property
    def placed_changes(self) -> tuple[str, ...]:
        """The changes, each with its position."""
        if self.at == "all":
            return self.changes
        return tuple(change if "@" in change else f"{change}@{self.at}" for change in self.changes)

    def query(self, **other: Any) -> str:
        """The query of this address with some parts changed; what is as usual is left out."""
        wanted, usual = replace(self, **other), TraceAddress()
        pairs: list[tuple[str, object]] = [] if wanted.prompt is None else [("prompt", wanted.prompt)]
        pairs += [("set", change) for change in wanted.changes]
        names = ("at", "generate", "layer", "position", "stream", "cell", "view")
        pairs += [(name, getattr(wanted, name)) for name in names if getattr(wanted, name) != getattr(usual, name)]
        return urlencode(pairs)

    def address(self, **other: Any) -> str:
        """The page with some parts changed."""
        return f"/trace?{self.query(**other)}"

    def with_change(self, change: str) -> str:
        """The page with this change, in the place of others of the same memory."""
        others = tuple(one for one in self.changes if memory_of(one) != memory_of(change))
        return self.address(changes=(*others, change), view="after")

    def without(self, index: int) -> str:
        """The page without the change of this number."""
        return self.address(changes=self.changes[:index] + self.changes[index + 1 :])

    def with_text(self, text: str) -> str:
        """The page of the prompt with this text after it, looked at from its new end."""
        return self.address(prompt=(self.prompt or "") + text, position=None)

    def memory(self, name: str) -> str:
        """The memory's own page, which carries prompt and changes along."""
        carried = TraceAddress(self.prompt, self.changes, self.at).query()
        return f"/{name}" + (f"?{carried}" if carried else "")


def read_address(prompt: str | None, changes: Sequence[str], at: str, **look: Any) -> TraceAddress:
    """What an address asks for; a form's empty fields are none, and its line ends those of the prompt as written."""
    written = None if prompt is None else prompt.replace("\r\n", "\n")
    given = tuple(one.strip() for one in changes if one.strip())
    return TraceAddress(written, given, at.strip() or "all", **look)


def memory_of(change: str) -> str:
    """The memory that a change names."""
    return re.split("[=*@]", change, maxsplit=1)[0].strip()
