"""Surface features: what can be seen at the end, or the beginning, of a prefix without knowing what it is about.

Every feature belongs to a family and has a 64-bit key with the family in its top bits; two prefixes share a feature if
they share its key. Here are the families, their keys, and the classes of words; nothing here counts or tests.
"""

import re
import unicodedata
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from mnemoscope.patterns.spelling import is_word_character
from mnemoscope.patterns.word_classes import CLASS_OF

LONGEST_NGRAM = 5
FARTHEST = 7
"""The distance before the last token up to which the same token counts as a pattern."""
SHORT_PREFIXES = (1, 2, 3, 5, 8)
LONGEST_AFFIX = 4
FAMILY_SHIFT = 58


class Family(IntEnum):
    """The kinds of surface features; in the order in which equals are preferred."""

    WORD = 1  # the last word, in whatever case
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


def hashed(family: int, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys of features that are known by a hash: the family in the top 6 bits, the hash's best bits below."""
    mixed: NDArray[np.uint64] = (values ^ (values >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    return np.uint64(family << FAMILY_SHIFT) | (mixed >> np.uint64(64 - FAMILY_SHIFT))


def plain(family: int, value: int) -> int:
    """The key of a feature that is known by a small number."""
    return (family << FAMILY_SHIFT) | value


def family_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The families of feature keys."""
    return (keys >> np.uint64(FAMILY_SHIFT)).astype(np.int64)


def reach() -> NDArray[np.int64]:
    """For every family the position that a prefix must have for the feature to be possible."""
    least = np.zeros(64, dtype=np.int64)
    for n in range(LONGEST_NGRAM):
        least[Family.NGRAM + n] = n
    for step in range(FARTHEST):
        least[Family.DISTANCE + step] = step + 1
    least[Family.BEGINNING + 1] = 1
    return least


def tokens_said(key: int) -> int:
    """How many tokens of a prefix the feature says in full."""
    family = key >> FAMILY_SHIFT
    if Family.NGRAM <= family < Family.NGRAM + LONGEST_NGRAM:
        return family - Family.NGRAM + 1
    if Family.BEGINNING <= family <= Family.BEGINNING + 1:
        return family - Family.BEGINNING + 1
    return int(family == Family.WORD or Family.DISTANCE <= family < Family.DISTANCE + FARTHEST)


_PUNCTUATION = (
    (".!?…。！？", "a sentence-ending mark"), (",，、", "a comma"), (":;：；", "a colon or semicolon"), # noqa: RUF001
    ("([{<（", "an opening bracket"), (")]}>）", "a closing bracket"), ("\"'`“”‘’«»", "a quotation mark"), # noqa: RUF001
    ("-–—−‐‑", "a dash"), ("/\\|", "a slash"), ("=+*%^~<>×±", "a mathematical sign"), ("$€£¥₹", "a currency sign"), # noqa: RUF001
)  # fmt: skip
CLASSES_OF_MARKS = frozenset({"punctuation", "a line break", "white space", *(name for _, name in _PUNCTUATION)})
"""The classes of what is no word."""
_DIGITS = ("", "a one-digit number", "a two-digit number", "a three-digit number")
_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")


def classes_of(text: str) -> tuple[str, ...]:
    """The classes that a word or token belongs to, in words; `text` may have white space around it."""
    word = text.strip()
    if not word:
        return () if not text else ("a line break",) if "\n" in text else ("white space",)
    if not any(is_word_character(character) for character in word):
        kinds = tuple(name for marks, name in _PUNCTUATION if word[-1] in marks)
        return ("punctuation", *kinds)
    found = [*CLASS_OF.get(word.lower(), ())]
    if all(character.isdigit() for character in word):
        found.append("a number")
        found += ["a year"] if _YEAR.fullmatch(word) else _DIGITS[len(word) : len(word) + 1]
    elif any(character.isdigit() for character in word):
        found.append("letters with digits")
    elif "_" in word:
        found.append("a name with an underscore")
    elif word.isupper():
        found.append("a word in capitals" if len(word) > 1 else "a single capital letter")
    elif word[0].isupper() and word[1:].islower():
        found.append("a capitalised word")
    elif not word.islower() and any(character.isupper() for character in word):
        found.append("a word of mixed case")
    elif len(word) == 1 and word.isascii():
        found.append("a single small letter")
    if not word.isascii():
        found += _scripts(word)
    return tuple(found)


def _scripts(word: str) -> list[str]:
    """The script of the first letter that is not ASCII, or that it is an accented Latin one."""
    for character in word:
        if not character.isascii() and character.isalpha():
            script = unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0]
            if script == "LATIN":
                return ["a word with an accented letter"]
            return [f"{script if script == 'CJK' else script.capitalize()} script"]
    return []


def affixes_of(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The endings and starts of 1 to 4 letters of a word, lower-case, that leave at least two letters."""
    if not word.isalpha():
        return (), ()
    low = word.lower()
    sizes = [size for size in range(1, LONGEST_AFFIX + 1) if len(low) >= size + 2]
    return tuple(low[-size:] for size in sizes), tuple(low[:size] for size in sizes)
