"""How a model reads a text: what frames a sentence, which positions count, what is run to ask about one, and of which
token its state speaks (definitions.md, 7.2).

Mining, traces, questions and pages ask a `Reading` and assume none of it. A causal model sees a position's prefix and
speaks of the token behind it; a masked model sees the whole sentence and speaks of the token at the position, which is
masked where it is asked what that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mnemoscope.errors import PromptError
from mnemoscope.foundation.words import NEXT, SAME, UNMASKED, Words

Count = TypeVar("Count", int, NDArray[np.int64])

SOURCE = -1
"""In a row of ids: what follows is the source that the text before it is read with."""


@dataclass(frozen=True)
class Reading:
    """`before` and `after` are the ids around a sentence's own tokens. `first` is the first position that counts: 1
    where nothing stands before a causal model's sentence, since position 0 is an attention sink there. A position's
    state `predicts` the next token or the same one. `mask` is the id that hides a token. An encoder-decoder reads a
    text with a `source`, here the ids around one, and `given` is that of a prompt.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    first: int = 0
    predicts: Literal["next", "same"] = "next"
    mask: int | None = None
    source: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    given: tuple[int, ...] | None = None

    @classmethod
    def of(cls, token: int | None) -> Self:
        """That of a causal model with this beginning token, or with none."""
        return cls(first=1) if token is None else cls((token,))

    @property
    def causal(self) -> bool:
        """A position sees itself and those before it; else the whole sentence."""
        return self.predicts == "next"

    @property
    def words(self) -> Words:
        """Those of pages and printed lines."""
        return NEXT if self.causal else UNMASKED if self.mask is None else SAME

    @property
    def offset(self) -> int:
        """The column of position 0."""
        return len(self.before)

    @property
    def framing(self) -> int:
        """How many columns are no position."""
        return len(self.before) + len(self.after)

    def column(self, position: Count) -> Count:
        return position + self.offset

    def columns(self, tokens: Count) -> Count:
        """How many columns a sentence of so many tokens takes."""
        return tokens + self.framing

    def own(self, tokens: int) -> slice:
        """The columns of a sentence's own tokens."""
        return slice(self.offset, self.offset + tokens)

    def counted_columns(self, tokens: int) -> slice:
        """The columns of its positions that count."""
        return slice(self.offset + self.first, self.offset + max(tokens, self.first))

    def frame(self, tokens: Sequence[int]) -> list[int]:
        """A sentence in its frame."""
        return [*self.before, *tokens, *self.after]

    def row(self, tokens: Sequence[int]) -> list[int]:
        """What the model is run on for a prompt: a sentence in its frame, and its source."""
        return [*self.frame(tokens), *(() if self.given is None else (SOURCE, *self.given))]

    def inside(self, lengths: NDArray[np.int64], width: int, *, first: int = 0) -> NDArray[np.bool_]:
        """Which columns `[row, column]` are positions, from `first` on, of sentences of these `lengths [row]`."""
        position = np.arange(width)[None] - self.offset
        return np.asarray((position >= first) & (position < np.asarray(lengths)[:, None]))

    def context(self, tokens: NDArray[Any], position: int, *, seen: bool = False) -> NDArray[Any]:
        """The tokens that the model is run on, framed, to ask about a position, and what stands where its state speaks
        of; without that, `seen`, a masked model is given the token itself, as is an encoder without a mask.
        """
        if self.causal or seen or self.mask is None:
            return tokens[: position + 1 if self.causal else None]
        hidden = tokens.copy()
        hidden[position] = self.mask
        return hidden

    def context_length(self, position: Count, tokens: Count) -> Count:
        """How many tokens `context` has, of a sentence of so many."""
        return position + 1 if self.causal else tokens

    @property
    def spoken_of(self) -> str:
        """The column of triggers with the token that a position's state speaks of; `next_token` may be null."""
        return "next_token" if self.causal else "token"

    def target(self, position: Count) -> Count:
        """The position of the token that a position's state speaks of; beyond the sentence's end it speaks of none."""
        return position + 1 if self.causal else position

    def asked_column(self, ids: Sequence[int]) -> int:
        """The column of framed `ids` at which it is asked what stands there or behind: the mask's, or the last one.
        Raises PromptError where a masked model is given none, or several.
        """
        if self.causal or self.mask is None:
            return ([*ids].index(SOURCE) if SOURCE in ids else len(ids)) - 1
        masks = [column for column, token in enumerate(ids) if token == self.mask]
        if len(masks) != 1:
            raise PromptError(
                f"the prompt holds {len(masks)} masks, where this model is asked what stands at one; write the mask"
                " token once, or name the position that is masked (--mask)"
            )
        return masks[0]
