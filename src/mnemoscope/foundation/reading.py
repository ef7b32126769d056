"""How a model reads a text: what frames a sentence, which positions count, what is run to ask about one, and of which
token its state speaks.

Mining, traces, questions and pages ask a `Reading` and assume none of it. Those of today are of causal models
(definitions.md, 7.2): the sentence stands after a beginning token, a position is asked about as the end of its prefix,
and its state predicts the next token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Count = TypeVar("Count", int, NDArray[np.int64])
Tokens = TypeVar("Tokens", Sequence[int], NDArray[Any])


@dataclass(frozen=True)
class Reading:
    """`before` are the ids before a sentence's own tokens: its beginning token, if the model has one. `first` is the
    first position that counts: 1 where nothing stands before a sentence, since position 0 is an attention sink there.
    """

    before: tuple[int, ...] = ()
    first: int = 0
    causal: ClassVar[bool] = True
    """A position sees itself and those before it."""
    last: ClassVar[int] = -1
    """The column, from the end, whose state speaks of what follows a framed text."""

    @classmethod
    def of(cls, token: int | None) -> Self:
        """That of a model with this beginning token, or with none."""
        return cls(first=1) if token is None else cls((token,))

    @property
    def offset(self) -> int:
        """The column of position 0."""
        return len(self.before)

    def columns(self, tokens: Count) -> Count:
        """How many columns a sentence of so many tokens takes."""
        return tokens + self.offset

    def own(self, tokens: int) -> slice:
        """The columns of a sentence's own tokens."""
        return slice(self.offset, self.offset + tokens)

    def frame(self, tokens: Sequence[int]) -> list[int]:
        """What the model is run on for a sentence."""
        return [*self.before, *tokens]

    def inside(self, lengths: NDArray[np.int64], width: int, *, first: int = 0) -> NDArray[np.bool_]:
        """Which columns `[row, column]` are positions, from `first` on, of sentences of these `lengths [row]`."""
        position = np.arange(width)[None] - self.offset
        return np.asarray((position >= first) & (position < np.asarray(lengths)[:, None]))

    def context(self, tokens: Tokens, position: int) -> Tokens:
        """The tokens that the model is run on, framed, to ask about a position."""
        return tokens[: position + 1]

    def context_length(self, position: Count) -> Count:
        """How many tokens `context` has."""
        return position + 1

    def target(self, position: Count) -> Count:
        """The position of the token that a position's state speaks of; beyond the sentence's end it speaks of none."""
        return position + 1
