"""Cuts sentences into runs of tokens, finds the surface features and content words of each run, and quotes them.

Content words have a letter, at least two characters (one in scripts without spaces) and are no stop words.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mnemoscope.atlas.vocabulary import is_without_spaces
from mnemoscope.patterns.surface import Bools, Feature, Spelling, affixes_of, classes_of, is_word_character, small_key
from mnemoscope.patterns.word_lists import STOP_WORDS

Integers = NDArray[np.int64]
Keys = NDArray[np.uint64]

_QUOTED_CHARACTERS = 60
_ASCII_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Runs:
    """Arrays over the tokens of all sentences, one sentence after the other; a run is a word or a single token."""

    tokens: NDArray[np.int32]
    sentence: Integers
    start: Integers
    """Index of the run's first token."""
    name: Keys
    """A hash of the run up to this token."""
    last: Bools
    """Whether the token is the last of its run."""


def cut_runs(tokens: NDArray[np.int32], begins: Integers, *, spelling: Spelling) -> Runs:
    """The sentences begin at `begins`, whose last entry is the number of tokens."""
    size = tokens.size
    opening = np.ones(size + 1, dtype=np.bool_)
    if size:
        opening[1:-1] = ~(spelling.closes[tokens[:-1]] & spelling.opens[tokens[1:]])
    opening[begins] = True
    places = np.arange(size)
    start = np.maximum.accumulate(np.where(opening[:-1], places, 0))
    longest = int((places - start).max(initial=0)) + 1
    # A polynomial in the tokens' random numbers, modulo 2^64: equal runs have equal hashes in all batches.
    powers = np.cumprod(np.full(longest, 0x5851F42D4C957F2D, dtype=np.uint64))
    terms = spelling.random[tokens] * powers[places - start]
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms, dtype=np.uint64)])
    sentence = np.repeat(np.arange(begins.size - 1), np.diff(begins))
    return Runs(tokens, sentence, start, sums[1:] - sums[start], opening[1:])


def words_in(text: str) -> list[str]:
    """The words of a text; a character of a script without spaces is one with its marks."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    words, word = [], ""
    for character in text:
        if is_word_character(character) and not is_without_spaces(character):
            word += character
            continue
        if word:
            words.append(word)
            word = ""
        if is_without_spaces(character) and is_word_character(character):
            is_mark = unicodedata.category(character)[0] == "M"
            words[-1:] = [words[-1] + character] if words and is_mark else [*words[-1:], character]
    return [*words, word] if word else words


def is_content_word(word: str) -> bool:
    if word in STOP_WORDS or not any(character.isalpha() for character in word):
        return False
    return len(word) > 1 or is_without_spaces(word)


class Lexicon:
    """Numbers words by first occurrence, so that numbers agree between batches; `words` have the first numbers."""

    def __init__(self, spelling: Spelling, words: Iterable[str] = ()) -> None:
        self.spelling = spelling
        self.words = list(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._features: dict[int, tuple[list[int], list[int]]] = {}
        self._contents: dict[int, list[int]] = {}

    def number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.words))
        if number == len(self.words):
            self.words.append(text)
        return number

    def features(self, runs: Runs, ends: Integers, *, before: bool = False) -> tuple[Integers, Keys]:
        """Pairs (index in `ends`, key) of the features of the runs that end at the tokens `ends`."""

        def look_up(name: int, end: int) -> list[int]:
            if name not in self._features:
                self._features[name] = self._word_features(self._text(runs, end))
            return self._features[name][before]

        return _look_up_each(runs, ends, look_up)

    def contents(self, runs: Runs) -> tuple[Integers, Integers]:
        """The content words of each sentence: the last token of the first occurrence, and the word's number."""

        def look_up(name: int, end: int) -> list[int]:
            if name not in self._contents:
                lower = [word.lower() for word in words_in(self._text(runs, end))]
                self._contents[name] = [self.number(word) for word in lower if is_content_word(word)]
            return self._contents[name]

        ends = np.flatnonzero(runs.last)
        index, numbers = _look_up_each(runs, ends, look_up)
        places, words = ends[index], numbers.astype(np.int64)
        _, first = np.unique(runs.sentence[places] * (len(self.words) + 1) + words, return_index=True)
        first.sort()
        return places[first], words[first]

    def _text(self, runs: Runs, end: int) -> str:
        text = self.spelling.vocabulary.text(runs.tokens[runs.start[end] : end + 1].tolist())
        return unicodedata.normalize("NFC", text)

    def _word_features(self, text: str) -> tuple[list[int], list[int]]:
        """The keys of a last word, and those of the word before it."""
        classes, word = classes_of(text), text.strip()
        pairs = [(Feature.CLASS, name) for name in classes]
        if any(is_word_character(character) for character in word):
            endings, starts = affixes_of(word)
            pairs += [(Feature.WORD, word.lower())]
            pairs += [(Feature.ENDING, letters) for letters in endings]
            pairs += [(Feature.START, letters) for letters in starts]
        last, before = (
            [small_key(family, self.number(value)) for family, value in group]
            for group in (pairs, [(Feature.CLASS_BEFORE, name) for name in classes])
        )
        return last, before


def _look_up_each(
    runs: Runs, ends: Integers, look_up: Callable[[int, int], list[int]]
) -> tuple[Integers, NDArray[np.uint64]]:
    """Pairs (index in `ends`, value) of the values that `look_up(name, end)` returns for each run."""
    names, where, which = np.unique(runs.name[ends], return_index=True, return_inverse=True)
    lists = [look_up(name, end) for name, end in zip(names.tolist(), ends[where].tolist(), strict=True)]
    sizes = np.array([len(one) for one in lists], dtype=np.int64)
    values = np.array(list(chain.from_iterable(lists)), dtype=np.uint64)
    index, flat = ranges((np.cumsum(sizes) - sizes)[which], sizes[which])
    return index, values[flat]


def ranges(starts: Integers, sizes: Integers) -> tuple[Integers, Integers]:
    """The i of each number, and the numbers, of the ranges `starts[i] .. starts[i] + sizes[i] - 1` in order."""
    index = np.repeat(np.arange(starts.size), sizes)
    before = np.cumsum(sizes) - sizes
    return index, np.arange(index.size) - np.repeat(before - starts, sizes)


def quote(text: str) -> str:
    """The last 60 characters in quotation marks; invisible characters are escaped."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(shown) > _QUOTED_CHARACTERS:
        shown = "…" + shown[-_QUOTED_CHARACTERS:]
    return f"'{shown}'" if '"' in shown else f'"{shown}"'
