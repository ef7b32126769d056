"""Surface features of prefixes (paper, section 3.1): their families and keys, and the classes of words.

A word is a run of letters, marks, digits and underscores; tokens that meet inside such a run belong to one word. In
scripts without spaces, and in vocabularies whose tokens do not include spaces, every token is a word.

A feature has a 64-bit key with its family in the top 6 bits. Two prefixes share a feature if they share its key.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas.vocabulary import Vocabulary, is_spelled, is_without_spaces
from mnemoscope.patterns.word_lists import CLASS_OF

Bools = NDArray[np.bool_]
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("“", "”"))
"""Straight quotes, which open and close alike, are counted separately."""


@cache
def is_word_character(character: str) -> bool:
    """Letters, marks, digits and underscores of any script."""
    return character == "_" or unicodedata.category(character)[0] in "LMN"


@dataclass(frozen=True)
class Spelling:
    """Arrays over the vocabulary."""

    vocabulary: Vocabulary
    opens: Bools
    """Whether the first character is a word character."""
    closes: Bools
    """Whether the last one is."""
    depth: NDArray[np.int8]
    """[len(BRACKETS) + 1, vocab]: opening minus closing brackets; last row: straight quotes modulo 2."""
    random: NDArray[np.uint64]
    """A random odd number per token, to hash runs of tokens."""


def read_spelling(vocabulary: Vocabulary, sentences: pl.DataFrame) -> Spelling:
    """`sentences` show whether tokens include spaces."""
    size = len(vocabulary.texts)
    opens, closes = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
    depth = np.zeros((len(BRACKETS) + 1, size), dtype=np.int8)
    for token, piece in enumerate(vocabulary.raw):
        if not piece:
            continue
        # An incomplete character counts as one of a word.
        decoded = piece.decode("utf-8", "replace")
        ends = (decoded[0], decoded[-1])
        if not decoded.strip() or not all(map(is_without_spaces, decoded.strip())):
            opens[token], closes[token] = (end == "\ufffd" or is_word_character(end) for end in ends)
        text = vocabulary.texts[token]
        for row, (left, right) in enumerate(BRACKETS):
            if left in text or right in text:
                depth[row, token] = max(-100, min(100, text.count(left) - text.count(right)))
        depth[-1, token] = text.count('"') % 2
    if not vocabulary.carries_spaces(sentences):
        opens[:] = closes[:] = False
    random = np.random.default_rng(0).integers(0, 2**63, size=size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return Spelling(vocabulary, opens, closes, depth, random)


LONGEST_NGRAM = 5
FARTHEST = 7
"""The greatest distance of a DISTANCE or BEHIND feature, in tokens from the last."""
SHORT_PREFIXES = (1, 2, 3, 5, 8)
LONGEST_AFFIX = 4
FAMILY_SHIFT = 58


class Feature(IntEnum):
    """Families of features; ties are ordered by number."""

    WORD = 1  # the last word, ignoring case
    NGRAM = 2  # + 0..4: the last n tokens
    DISTANCE = 8  # + 0..6: a token at a distance before the last
    BEGINNING = 16  # + 0..1: the first n tokens
    ENDING = 18  # the last letters of the last word
    START = 19  # the first letters of the last word
    CLASS = 20  # the class of the last word or token
    CLASS_BEFORE = 21  # the class of the word before it
    CONTINUES = 22  # the last token goes on with a word
    LENGTH = 23  # a very short prefix
    INSIDE = 24  # + 0..4: inside brackets or quotation marks
    BEHIND = 32  # + 0..6: a token at a distance behind the last, in sentences that are read whole


def hash_keys(family: int, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys of features whose values are hashes."""
    mixed: NDArray[np.uint64] = (values ^ (values >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return np.uint64(family << FAMILY_SHIFT) | (mixed >> np.uint64(64 - FAMILY_SHIFT))


def small_key(family: int, value: int) -> int:
    return (family << FAMILY_SHIFT) | value


def split_key(key: int) -> tuple[Feature, int, int]:
    """The family, the offset within the family (such as n - 1 of an n-gram), and the value below."""
    number, value = divmod(key, 1 << FAMILY_SHIFT)
    family = max(one for one in Feature if one <= number)
    return family, number - family, value


def window_offsets(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The smallest position at which each feature is possible."""
    least = np.zeros(64, dtype=np.int64)
    for n in range(LONGEST_NGRAM):
        least[Feature.NGRAM + n] = n
    for step in range(FARTHEST):
        least[Feature.DISTANCE + step] = step + 1
    least[Feature.BEGINNING + 1] = 1
    return least[(keys >> np.uint64(FAMILY_SHIFT)).astype(np.int64)]


def tokens_said(key: int) -> int:
    family, kind, _ = split_key(key)
    one = family in (Feature.WORD, Feature.DISTANCE, Feature.BEHIND)
    return kind + 1 if family in (Feature.NGRAM, Feature.BEGINNING) else int(one)


_PUNCTUATION = (
    (".!?…。！？", "a sentence-ending mark"),
    (",，、", "a comma"),
    (":;：；", "a colon or semicolon"),
    ("([{<（", "an opening bracket"),
    (")]}>）", "a closing bracket"),
    ("\"'`“”‘’«»", "a quotation mark"),
    ("-–—−‐‑", "a dash"),
    ("/\\|", "a slash"),
    ("=+*%^~<>×±", "a mathematical sign"),
    ("$€£¥₹", "a currency sign"),
)
CLASSES_OF_MARKS = frozenset({"punctuation", "a line break", "white space", *(name for _, name in _PUNCTUATION)})
_DIGITS = ("", "a one-digit number", "a two-digit number", "a three-digit number")
_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")


def classes_of(text: str) -> tuple[str, ...]:
    """The names of the classes of a word or token; `text` may have white space around it."""
    word = text.strip()
    if not word:
        return () if not text else ("a line break",) if "\n" in text else ("white space",)
    if not any(is_word_character(character) for character in word):
        kinds = tuple(name for marks, name in _PUNCTUATION if word[-1] in marks)
        return ("punctuation", *kinds)
    classes = [*CLASS_OF.get(word.lower(), ())]
    if all(character.isdigit() for character in word):
        classes.append("a number")
        classes += ["a year"] if _YEAR.fullmatch(word) else _DIGITS[len(word) : len(word) + 1]
    elif any(character.isdigit() for character in word):
        classes.append("letters with digits")
    elif "_" in word:
        classes.append("a name with an underscore")
    elif word.isupper():
        classes.append("a word in capitals" if len(word) > 1 else "a single capital letter")
    elif word[0].isupper() and word[1:].islower():
        classes.append("a capitalised word")
    elif not word.islower() and any(character.isupper() for character in word):
        classes.append("a word of mixed case")
    elif len(word) == 1 and word.isascii():
        classes.append("a single small letter")
    if not word.isascii():
        classes += _scripts(word)
    return tuple(classes)


def _scripts(word: str) -> list[str]:
    """The class for the script of the first non-ASCII letter."""
    for character in word:
        if not character.isascii() and character.isalpha():
            script = unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0]
            if script == "LATIN":
                return ["a word with an accented letter"]
            return [f"{script if script == 'CJK' else script.capitalize()} script"]
    return []


def affixes_of(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Lower-case endings and starts of 1 to 4 letters that leave at least two letters."""
    if not is_spelled(word):
        return (), ()
    low = word.lower()
    sizes = [size for size in range(1, LONGEST_AFFIX + 1) if len(low) >= size + 2]
    return tuple(low[-size:] for size in sizes), tuple(low[:size] for size in sizes)
