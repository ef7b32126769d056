"""How the tokens of a vocabulary spell words: which join the word before them, which open or close brackets.

A word is a run of letters, marks, digits and underscores; where tokens meet inside such a run they belong to one word.
Scripts without spaces between words have no such runs: there every token is a word. So it is in a vocabulary whose
tokens are words without their spaces. Part of section 3.1 of the paper: what an annotator sees of a prefix.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"))
"""Pairs whose inside is a pattern; straight quotes, which open and close alike, are counted apart."""

_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""


@cache
def is_word_character(character: str) -> bool:
    """Whether the character belongs to a word: letters, marks, digits and underscores of any script."""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


@cache
def is_without_spaces(character: str) -> bool:
    """Whether the character belongs to a script that does not put spaces between words."""
    return any(first <= ord(character) <= last for first, last in _WITHOUT_SPACES)


@dataclass(frozen=True)
class Spelling:
    """What is known of every token by itself; arrays over the vocabulary."""

    texts: list[str]
    raw: list[bytes]
    opens: Bools
    """The first character belongs to a word, so it may go on with the word before it."""
    closes: Bools
    """The last character belongs to a word."""
    depth: NDArray[np.int8]
    """[len(BRACKETS) + 1, vocab]: brackets opened less brackets closed; last row: straight quotes."""
    random: NDArray[np.uint64]
    """A random odd number for every token, of which runs of tokens get their names."""

    def decoded(self, tokens: Sequence[int]) -> str:
        """The text of a run of tokens."""
        return b"".join([self.raw[token] for token in tokens]).decode("utf-8", "replace")


def read_spelling(vocabulary: pl.DataFrame, sentences: pl.DataFrame) -> Spelling:
    """The spelling of an atlas's vocabulary; some of its sentences tell whether tokens bring spaces along."""
    texts, raw = vocabulary["text"].to_list(), vocabulary["bytes"].to_list()
    size = len(texts)
    opens, closes = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
    depth = np.zeros((len(BRACKETS) + 1, size), dtype=np.int8)
    for token, piece in enumerate(raw):
        if not piece:
            continue
        opens[token], closes[token] = _joins(piece)
        text = texts[token]
        for row, (left, right) in enumerate(BRACKETS):
            if left in text or right in text:
                depth[row, token] = max(-100, min(100, text.count(left) - text.count(right)))
        depth[-1, token] = text.count('"') % 2
    if not _carry_spaces(raw, sentences):
        opens[:] = closes[:] = False
    random = np.random.default_rng(0).integers(0, 2**63, size=size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return Spelling(texts, raw, opens, closes, depth, random)


def _joins(piece: bytes) -> tuple[bool, bool]:
    """Whether a token's ends belong to words; bytes that are no text by themselves are parts of letters."""
    text = piece.decode("utf-8", "replace")
    first, last = text[0], text[-1]
    if text.strip() and all(is_without_spaces(character) for character in text.strip()):
        return False, False
    return first == "\ufffd" or is_word_character(first), last == "\ufffd" or is_word_character(last)


def _carry_spaces(raw: list[bytes], sentences: pl.DataFrame) -> bool:
    """Whether tokens bring the spaces between words along; if not, half of a text's white space is lost in them."""
    stored = joined = 0
    for text, tokens in sentences.select("text", "tokens").iter_rows():
        stored += sum(character.isspace() for character in text.strip())
        spelled = b"".join([raw[token] for token in tokens]).decode("utf-8", "replace")
        joined += sum(character.isspace() for character in spelled.strip())
    return 2 * joined >= stored
