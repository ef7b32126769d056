"""The text of a place, a position in a sentence: the last tokens of its prefix, of a masked model's also the first
ones behind it, and the word at the position.

That word is whole: of `arbit|r|ary` it is `arbitrary` at each of the three tokens. It ends where letters and digits do.
"""

import sqlite3
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.atlas.vocabulary import is_without_spaces
from mnemoscope.foundation.reading import Reading
from mnemoscope.search.database import rows_by_key, token_type

CAUSAL = Reading()
CONTEXT = 24
"""Tokens of a prefix that are indexed and shown, counted back from the trigger token; a word has as many at most on
either side of it.
"""
_NEAR = 24
"""Characters in which a cut prefix is searched for a space to begin at."""
_WITHIN_WORDS = "\ufffd\u200c\u200d"
"""A part of a character, and joiners."""


@dataclass(frozen=True)
class Window:
    prefix: str
    """What is read around the trigger token, up to it or beyond; if cut, from the first space on if one is near."""
    completed: str
    """The same, up to the end of the word."""
    word: str
    """Empty if the token is punctuation or white space."""
    left: int
    """Tokens of the word behind the trigger token."""


class Windows:
    def __init__(self, raw: Sequence[bytes], *, spaced: bool, reading: Reading = CAUSAL) -> None:
        """`raw` are the bytes of every token; `spaced`: they include the spaces between words."""
        self._raw, self._spaced, self.reading = raw, spaced, reading
        shown = [token.decode("utf-8", "replace") for token in raw]
        self._begins_in_word = [spaced and _is_in_word(text[:1]) for text in shown]
        self._ends_in_word = [spaced and _is_in_word(text[-1:]) for text in shown]

    def read(self, database: sqlite3.Connection, places: Sequence[tuple[int, int]]) -> list[Window]:
        """Of each (sentence, position). Raises sqlite3.DatabaseError for one that the index lacks."""
        stored = rows_by_key(database, "sentences", "sentence", "tokens", sorted({sentence for sentence, _ in places}))
        kind = token_type(len(self._raw))
        try:
            return [self._window(np.frombuffer(stored[sentence][0], kind), position) for sentence, position in places]
        except (KeyError, IndexError, ValueError):
            raise sqlite3.DatabaseError("a sentence is missing or damaged") from None

    def _window(self, sentence: NDArray[Any], position: int) -> Window:
        begin = max(0, position - 2 * CONTEXT)
        return self.window(sentence[begin : position + CONTEXT + 1].tolist(), position - begin)

    def window(self, tokens: list[int], position: int) -> Window:
        """`tokens` are a sentence's, or those from 2 * CONTEXT before `position` to CONTEXT behind it."""
        first, last = position, position
        while first > max(0, position - CONTEXT) and self._are_joined(tokens[first - 1], tokens[first]):
            first -= 1
        while last < min(len(tokens) - 1, position + CONTEXT) and self._are_joined(tokens[last], tokens[last + 1]):
            last += 1
        word, rest = _find_word(
            self._bytes(tokens[first:position]),
            self._raw[tokens[position]],
            self._bytes(tokens[position + 1 : last + 1]),
        )
        begin = max(0, position - CONTEXT + 1)
        ends = (position + 1, last + 1) if self.reading.causal else (position + CONTEXT + 1,) * 2
        prefix, text = (self._bytes(tokens[begin:end]).decode("utf-8", "replace") for end in ends)
        space = max(0, prefix.find(" ", 0, _NEAR)) if begin and self._spaced else 0
        return Window(prefix[space:], text[space : len(prefix) + rest], word, last - position)

    def _are_joined(self, token: int, following: int) -> bool:
        return self._ends_in_word[token] and self._begins_in_word[following]

    def _bytes(self, tokens: list[int]) -> bytes:
        return (b"" if self._spaced else b" ").join([self._raw[token] for token in tokens])


def _find_word(before: bytes, token: bytes, behind: bytes) -> tuple[str, int]:
    """The words that the token is in, and how many of their characters stand behind it."""
    text = (before + token + behind).decode("utf-8", "replace")
    end = len((before + token).decode("utf-8", "replace"))
    first, last = min(len(before.decode("utf-8", "replace")), max(0, end - 1)), end
    while 0 < first < len(text) and _is_in_word(text[first]) and _is_in_word(text[first - 1]):
        first -= 1
    while 0 < last < len(text) and _is_in_word(text[last - 1]) and _is_in_word(text[last]):
        last += 1
    return text[first:last], last - end


@cache
def _is_in_word(character: str) -> bool:
    """Whether it is a letter, mark or digit of a script with spaces, a joiner, or a part of a character; "" is not."""
    if not character or is_without_spaces(character):
        return False
    return unicodedata.category(character)[0] in "LMN" or character in _WITHIN_WORDS
