"""Numbers the positions of the words of all triggers' prefixes; the words of a sentence are consecutive.

A prefix is the positions of its first and its last word. A prefix that begins or ends within a word has its words in a
row of their own. One position between rows is free, so that no phrase crosses rows. Words outside all prefixes are left
out. Words are those that FTS5 finds in a prefix's text.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.search.database import CONTEXT, window_text
from mnemoscope.search.text import prepare, split_words

Ints = NDArray[np.int64]
_NEAR = 24
"""Characters in which `window_text` searches for a space."""


@dataclass(frozen=True)
class Stretches:
    words: list[str]
    """In the order of their UTF-8 bytes."""
    pairs: NDArray[np.uint64]
    """`word << 32 | position`, sorted; a word is its index in `words`."""


class WordRows:
    def __init__(self, raw: list[bytes], *, spaced: bool) -> None:
        """`raw` are the bytes of every token; `spaced`: they include the spaces between words."""
        self._raw, self._spaced = raw, spaced
        self._begins = np.array([bool(token) and _is_boundary(token[0]) for token in raw], np.bool_)
        self._ends = np.array([bool(token) and _is_boundary(token[-1]) for token in raw], np.bool_)
        self._with_space = np.array([b" " in token for token in raw], np.bool_)
        self._on_space = np.array([token[:1] == b" " for token in raw], np.bool_)
        self._bytes = np.array([len(token) for token in raw], np.int64)
        self._numbers: dict[str, int] = {}
        self._runs: dict[bytes, int] = {}
        self._chunks: dict[str, list[int]] = {}
        self._run_words = array("I")
        self._run_ends = array("q", [0])
        self._add_runs([token.decode("utf-8", "replace") for token in raw])
        self._made: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = []
        self._free = 1
        """Starts at 1, since a prefix without words ends one position before it begins."""

    def add(self, tokens: NDArray[Any], starts: Ints, rows: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """Adds the words of sentences whose `tokens` begin at `starts`. A prefix is its sentence's index in `rows` and
        a token's position, sorted by both. Returns the positions of each prefix's first and last word; without words,
        the last is one before the first.
        """
        fresh = np.zeros(len(tokens), np.bool_)
        fresh[1:] = self._ends[tokens[:-1]] | self._begins[tokens[1:]] if self._spaced else True
        fresh[starts] = True
        begins = np.flatnonzero(fresh)
        run_of = np.cumsum(fresh) - 1
        last_of = np.append(begins[1:], len(tokens)) - 1
        runs = self._number_runs(tokens, begins, last_of)
        ends, words = np.array(self._run_ends), np.array(self._run_words)
        counts = ends[runs + 1] - ends[runs]
        before = np.cumsum(counts) - counts
        sentence_of = np.searchsorted(starts, begins, side="right") - 1
        shift = self._free + sentence_of
        last = starts[rows] + positions
        begin = np.maximum(starts[rows], last - (CONTEXT - 1))
        cut = begin > starts[rows]
        start, sound = begin, last_of[run_of[last]] == last
        if self._spaced:
            start, near = self._find_spaces(tokens, begin)
            start, sound = np.where(cut, start, begin), sound & (~cut | (near & (start <= last)))
        start = np.minimum(start, last)
        run, own = run_of[start], run_of[last]
        ends_of = before[run] + shift[run], (before + counts + shift)[own] - 1
        # Words before a sentence's first prefix belong to no prefix.
        earliest = np.full(len(starts), np.iinfo(np.int64).max)
        np.minimum.at(earliest, rows[sound], ends_of[0][sound])
        where = np.arange(int(counts.sum())) - np.repeat(before, counts)
        places = where + np.repeat(before + shift, counts)
        kept = places >= np.repeat(earliest[sentence_of], counts)
        self._append(words[where + np.repeat(ends[runs], counts)][kept], places[kept])
        self._free += int(counts.sum()) + len(starts)
        return self._add_alone(tokens, begin, last, cut, np.flatnonzero(~sound), ends_of)

    def _find_spaces(self, tokens: NDArray[Any], begin: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The first token with a space from `begin` on, and whether it is near enough and starts with the space."""
        held = np.where(self._with_space[tokens], np.arange(len(tokens)), len(tokens))
        following = np.append(np.minimum.accumulate(held[::-1])[::-1], len(tokens))[begin]
        bytes_before = np.concatenate([[0], np.cumsum(self._bytes[tokens])])
        near = bytes_before[following] - bytes_before[begin] < _NEAR  # at least as many as characters
        there = following < len(tokens)
        return following, near & there & self._on_space[tokens[np.where(there, following, 0)]]

    def _add_alone(
        self,
        tokens: NDArray[Any],
        begin: Ints,
        last: Ints,
        cut: NDArray[np.bool_],
        which: Ints,
        places: tuple[Ints, Ints],
    ) -> tuple[Ints, Ints]:
        """Adds one row for each distinct prefix of `which`, and returns `places` with their positions."""
        if not len(which):
            return places
        ends, first_of, same = np.unique(last[which], return_index=True, return_inverse=True)
        some = which[first_of]
        texts = [
            prepare(window_text(tokens[a : b + 1].tolist(), self._raw, spaced=self._spaced, cut=c))
            for a, b, c in zip(begin[some].tolist(), ends.tolist(), cut[some].tolist(), strict=True)
        ]
        rows = self._number_texts(texts)
        counts = np.array([len(row) for row in rows], np.int64)
        firsts = self._free + np.cumsum(counts) - counts + np.arange(len(rows))
        where = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        self._append(np.array([word for row in rows for word in row], np.uint32), where)
        self._free += int(counts.sum()) + len(rows)
        places[0][which], places[1][which] = firsts[same], (firsts + counts - 1)[same]
        return places

    def finish(self) -> Stretches:
        used = np.zeros(len(self._numbers), np.bool_)
        for word, _ in self._made:
            used[word] = True
        words = sorted((word for word, number in self._numbers.items() if used[number]), key=str.encode)
        order = np.empty(len(used), np.uint64)
        order[[self._numbers[word] for word in words]] = np.arange(len(words), dtype=np.uint64)
        both = np.empty(sum(len(word) for word, _ in self._made), np.uint64)
        done = len(both)
        while self._made:
            word, place = self._made.pop()
            done -= len(word)
            both[done : done + len(word)] = order[word] << np.uint64(32) | place
        both.sort()
        return Stretches(words, both)

    def _append(self, words: NDArray[Any], places: Ints) -> None:
        if len(places) and int(places[-1]) >= 1 << 32:
            raise OverflowError("the prefixes have more than four billion words")
        self._made.append((words.astype(np.uint32), places.astype(np.uint32)))

    def _number_runs(self, tokens: NDArray[Any], begins: Ints, lasts: Ints) -> Ints:
        """Numbers every run of tokens without a word boundary; the number of a single token is its id."""
        runs = tokens[begins].astype(np.int64)
        longer = np.flatnonzero(lasts > begins)
        size, data = tokens.itemsize, np.ascontiguousarray(tokens).tobytes()
        pairs = zip((begins[longer] * size).tolist(), ((lasts[longer] + 1) * size).tolist(), strict=True)
        keys = [data[a:b] for a, b in pairs]
        new = [key for key in dict.fromkeys(keys) if key not in self._runs]
        known = len(self._run_ends) - 1
        self._runs.update(zip(new, range(known, known + len(new)), strict=True))
        ids = (np.frombuffer(key, tokens.dtype).tolist() for key in new)
        self._add_runs([b"".join(map(self._raw.__getitem__, some)).decode("utf-8", "replace") for some in ids])
        runs[longer] = [self._runs[key] for key in keys]
        return runs

    def _add_runs(self, texts: Sequence[str]) -> None:
        for words in split_words([prepare(text) for text in texts]):
            self._run_words.extend(map(self._number, words))
            self._run_ends.append(len(self._run_words))

    def _number_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The words of prepared texts; each distinct piece between white space is split once."""
        pieces = [text.split() for text in texts]
        new = [piece for piece in dict.fromkeys(piece for row in pieces for piece in row) if piece not in self._chunks]
        self._chunks.update(
            (piece, list(map(self._number, words))) for piece, words in zip(new, split_words(new), strict=True)
        )
        return [[word for piece in row for word in self._chunks[piece]] for row in pieces]

    def _number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))


def _is_boundary(byte: int) -> bool:
    """Whether the byte is ASCII, but neither letter nor digit."""
    return byte < 0x80 and not bytes([byte]).isalnum()
