"""How the tokens of a vocabulary spell words: which join the word before them, which open or close brackets.

A word is a run of letters, marks, digits and underscores; where tokens meet inside such a run they belong to one word.
Scripts without spaces between words have no such runs: there every token is a word. So it is in a vocabulary whose
tokens are words without their spaces. Part of section 3.1 of the paper: what an annotator sees of a prefix.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas.vocabulary import Vocabulary, is_without_spaces

Bools = NDArray[np.bool_]
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"))
"""Pairs whose inside is a pattern; straight quotes, which open and close alike, are counted apart."""


@cache
def is_word_character(character: str) -> bool:
    """Whether the character belongs to a word: letters, marks, digits and underscores of any script."""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


@dataclass(frozen=True)
class Spelling:
    """What is known of every token by itself; arrays over the vocabulary."""

    vocabulary: Vocabulary
    opens: Bools
    """The first character belongs to a word, so it may go on with the word before it."""
    closes: Bools
    """The last character belongs to a word."""
    depth: NDArray[np.int8]
    """[len(BRACKETS) + 1, vocab]: brackets opened less brackets closed; last row: straight quotes."""
    random: NDArray[np.uint64]
    """A random odd number for every token, of which runs of tokens get their names."""


def read_spelling(vocabulary: Vocabulary, sentences: pl.DataFrame) -> Spelling:
    """The spelling of an atlas's vocabulary; some of its sentences tell whether tokens bring spaces along."""
    size = len(vocabulary.texts)
    opens, closes = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
    depth = np.zeros((len(BRACKETS) + 1, size), dtype=np.int8)
    for token, piece in enumerate(vocabulary.raw):
        if not piece:
            continue
        opens[token], closes[token] = _joins(piece)
        text = vocabulary.texts[token]
        for row, (left, right) in enumerate(BRACKETS):
            if left in text or right in text:
                depth[row, token] = max(-100, min(100, text.count(left) - text.count(right)))
        depth[-1, token] = text.count('"') % 2
    if not vocabulary.carries_spaces(sentences):
        opens[:] = closes[:] = False
    random = np.random.default_rng(0).integers(0, 2**63, size=size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return Spelling(vocabulary, opens, closes, depth, random)


def _joins(piece: bytes) -> tuple[bool, bool]:
    """Whether a token's ends belong to words; bytes that are no text by themselves are parts of letters."""
    text = piece.decode("utf-8", "replace")
    first, last = text[0], text[-1]
    if text.strip() and all(is_without_spaces(character) for character in text.strip()):
        return False, False
    return first == "\ufffd" or is_word_character(first), last == "\ufffd" or is_word_character(last)
