"""The address of a trace: prompt, changes, and what of it is looked at. The whole state of the page, and its limits.

Torch-free: what a change is, and whether the model has the memory, is for the model's side to say.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import AfterValidator, BaseModel, Field

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
Change = Annotated[str, Field(max_length=LONGEST)]
Place = Annotated[
    Annotated[int, Field(ge=0, le=100_000)] | Literal[""] | None,
    AfterValidator(lambda place: None if place == "" else place),
]
"""A number, or nothing where a form's field was left empty."""


class TraceAddress(BaseModel, frozen=True, populate_by_name=True):
    """What the address asks for, empty fields of a form left out; the page chooses `layer` and `position` itself.

    `at` holds for changes that name no position themselves.
    """

    prompt: Annotated[
        str | None,
        Field(max_length=PROMPT, description="The text to trace"),
        # As it was written: forms send other line ends.
        AfterValidator(lambda prompt: prompt and prompt.replace("\r\n", "\n")),
    ] = None
    changes: Annotated[
        list[Change],
        # One more than are taken, so that what is refused can be said in words.
        Field(validation_alias="set", max_length=CHANGES + 1),
        Field(description="Changes, such as L10.M222=0 or L10.M222*2@last"),
        AfterValidator(lambda changes: [one.strip() for one in changes if one.strip()]),
    ] = []
    at: Annotated[
        str,
        Field(max_length=10, description="Where changes hold that do not say so: all, last, or from a position on"),
        AfterValidator(lambda at: at.strip() or "all"),
    ] = "all"
    generate: Annotated[
        Annotated[int, Field(ge=0, le=WRITTEN)] | Literal[""], AfterValidator(lambda count: count or 0)
    ] = 0
    layer: Place = None
    position: Place = None
    stream: Stream = "residual"
    cell: Cell = "probability"
    view: View = "after"

    @property
    def placed_changes(self) -> tuple[str, ...]:
        """The changes, each with its position."""
        if self.at == "all":
            return tuple(self.changes)
        return tuple(change if "@" in change else f"{change}@{self.at}" for change in self.changes)

    def query(self, **other: Any) -> str:
        """The query of this address with some parts changed; what is as usual is left out."""
        wanted, usual = self.model_copy(update=other), TraceAddress()
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
        others = [one for one in self.changes if memory_of(one) != memory_of(change)]
        return self.address(changes=[*others, change], view="after")

    def without(self, index: int) -> str:
        """The page without the change of this number."""
        return self.address(changes=self.changes[:index] + self.changes[index + 1 :])

    def with_text(self, text: str) -> str:
        """The page of the prompt with this text after it, looked at from its new end."""
        return self.address(prompt=(self.prompt or "") + text, position=None)

    def memory(self, name: str) -> str:
        """The memory's own page, which carries prompt and changes along."""
        carried = TraceAddress(prompt=self.prompt, changes=self.changes, at=self.at).query()
        return f"/{name}" + (f"?{carried}" if carried else "")


def memory_of(change: str) -> str:
    """The memory that a change names."""
    return re.split("[=*@]", change, maxsplit=1)[0].strip()
