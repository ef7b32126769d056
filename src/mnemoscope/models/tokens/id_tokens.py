"""Token ids in place of a tokenizer: a text is its ids in decimal, joined by spaces.

So a model without a tokenizer is mined, traced and shown like any other, on texts such as `12 5 7`.
"""

import re
from collections.abc import Collection
from typing import Any

from mnemoscope.errors import PromptError

IDS = "ids"
"""The tokenizer argument (`--tokenizer ids`) for texts of token ids."""

_WORD = re.compile(r"\S+")
_DIGITS = 18


class IdTokens:
    """`beginning`: a text that begins with the model's beginning token loses it once, and with `ending` at its end
    those. Two or more of a token of `padding` at an end of a text are an error.
    """

    def __init__(
        self, *, beginning: int | None = None, ending: tuple[int, ...] = (), padding: Collection[int] = ()
    ) -> None:
        self.description: dict[str, Any] = {"type": IDS}
        self._beginning, self._ending = beginning, [*ending]
        self._padding = padding

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text."""
        rows = [_ids_of(text.split()) for text in texts]
        for ids in rows if self._padding else ():
            for end, two in (("begins", ids[:2]), ("ends", ids[-2:])):
                if len(two) == 2 and two[0] == two[1] and two[0] in self._padding:
                    shown = " ".join(map(str, ids[:6] if end == "begins" else ids[-6:]))
                    raise PromptError(
                        f"a row {end} with several tokens {two[0]} ({shown}), which fill up, begin or end texts of this"
                        " model; leave out the padding, or keep the attention_mask beside the ids"
                    )
        return [self._own(ids) for ids in rows]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        spans = [word.span() for word in _WORD.finditer(text)]
        ids = _ids_of(text.split())
        ended = len(ids) - len(self._without_end(ids))
        return spans[len(ids) - len(self._own(ids)) - ended : len(ids) - ended]

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        """Text and bytes of each of the first `rows` ids: the id, as in running text."""
        texts = [f" {token}" for token in range(rows)]
        return texts, [text.encode() for text in texts]

    def special(self) -> None:
        """Always None: nothing marks special tokens."""
        return

    def _own(self, ids: list[int]) -> list[int]:
        ids = self._without_end(ids)
        return ids[1:] if ids and ids[0] == self._beginning else ids

    def _without_end(self, ids: list[int]) -> list[int]:
        begins = len(ids) - len(self._ending)
        return ids[:begins] if self._ending and ids[max(0, begins) :] == self._ending else ids


def _ids_of(words: list[str]) -> list[int]:
    joined = "".join(words)
    if joined and not (joined.isascii() and joined.isdecimal() and len(max(words, key=len)) <= _DIGITS):
        wrong = next(word for word in words if not (word.isascii() and word.isdecimal()) or len(word) > _DIGITS)
        raise PromptError(
            f"{wrong[:40]!r} is not a token id; without a tokenizer a text is its token ids, as in '12 5 7'"
            " (or name a tokenizer with --tokenizer)"
        )
    return list(map(int, words))
