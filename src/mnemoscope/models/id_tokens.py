"""Token ids in place of a tokenizer: a text is its ids in decimal, joined by spaces.

So a model without a tokenizer is mined, traced and shown like any other, on texts such as `12 5 7`. Its tokens are
shown as their ids, with a space before each.
"""

import re
from typing import Any

from mnemoscope.errors import PromptError

IDS = "ids"
"""What is given as a tokenizer (`--tokenizer ids`) to say that texts are token ids."""

_WORD = re.compile(r"\S+")
_DIGITS = 18
"""Digits that the number of an id has at most, so that it fits into 64 bits."""


class IdTokens:
    """Reads texts that are token ids in decimal.

    `beginning` is the token that the model's sentences begin with anyway: a text that begins with it has it left out,
    once, or the model would read it twice.
    """

    def __init__(self, *, beginning: int | None = None) -> None:
        self.description: dict[str, Any] = {"type": IDS}
        self._beginning = beginning

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text; raises PromptError for a word that is none."""
        return [self._own(_ids_of(text.split())) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of every token of `encode([text])[0]`."""
        spans = [found.span() for found in _WORD.finditer(text)]
        ids = _ids_of(text.split())
        return spans[len(ids) - len(self._own(ids)) :]

    def vocabulary(self, rows: int) -> tuple[list[str], list[bytes]]:
        """Text and bytes of each of the first `rows` ids: the id, as it stands in running text."""
        texts = [f" {token}" for token in range(rows)]
        return texts, [text.encode() for text in texts]

    def special(self) -> None:
        """Which tokens are special: nobody says."""
        return

    def _own(self, ids: list[int]) -> list[int]:
        return ids[1:] if ids and ids[0] == self._beginning else ids


def _ids_of(words: list[str]) -> list[int]:
    joined = "".join(words)
    if joined and not (joined.isascii() and joined.isdecimal() and len(max(words, key=len)) <= _DIGITS):
        wrong = next(word for word in words if not (word.isascii() and word.isdecimal()) or len(word) > _DIGITS)
        raise PromptError(
            f"{wrong[:40]!r} is not a token id; without a tokenizer a text is its token ids, as in '12 5 7'"
            " (or name a tokenizer with --tokenizer)"
        )
    return list(map(int, words))
