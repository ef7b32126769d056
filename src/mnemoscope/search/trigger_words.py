"""Finds the prefixes that contain a query's words, from the positions of words and prefixes (stretches.py)."""

import sqlite3
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.search.arrays import read_arrays
from mnemoscope.search.database import EVERYWHERE, MOST_ROWS, Ranges, lie_within
from mnemoscope.search.postings import unpack
from mnemoscope.search.text import Query, split_words

Places = NDArray[np.uint32]
_FEW = 16
"""Fewer than one in so many triggers are sorted; more are marked in a mask."""


@dataclass(frozen=True)
class Matches:
    """The matching triggers by rank, and their memories. `exact`: none was left out."""

    triggers: NDArray[Any]
    memories: NDArray[Any]
    exact: bool


@dataclass(frozen=True)
class TriggerWords:
    """`first` and `last` (positions of words) and `trigger` are per prefix, sorted by `last`; `memory`, `rank`,
    `sentence` and `position` per trigger, sorted by rank and memory. `packed` and `ends` hold each word's positions.
    """

    first: Places
    last: Places
    trigger: NDArray[Any]
    memory: NDArray[Any]
    rank: NDArray[Any]
    sentence: NDArray[Any]
    position: NDArray[Any]
    packed: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @staticmethod
    def read(database: sqlite3.Connection) -> "TriggerWords":
        arrays = read_arrays(database)
        if not arrays:
            none = np.empty(0, np.uint32)
            return TriggerWords(*(none,) * 7, packed=np.empty(0, np.uint8), ends=np.empty(0, np.int64))
        try:
            last, words = arrays["last"].astype(np.uint32), arrays["words"].astype(np.uint32)
            return TriggerWords(
                first=last + np.uint32(1) - words,
                last=last,
                **{name: arrays[name] for name in ("trigger", "memory", "rank", "sentence", "position")},
                packed=arrays["packed"],
                ends=np.cumsum(arrays["bytes"], dtype=np.int64),
            )
        except KeyError as missing:
            raise sqlite3.DatabaseError(f"array {missing} is missing") from None

    def find(self, database: sqlite3.Connection, query: Query, within: Ranges) -> Matches:
        """The triggers that match the whole query, at most MOST_ROWS, by rank."""
        triggers = self._sort_unique(self.trigger[self._find_prefixes(database, query)])
        if within != EVERYWHERE:
            triggers = triggers[lie_within(self.memory[triggers], within)]
        kept = triggers[:MOST_ROWS]
        return Matches(kept, self.memory[kept], exact=len(triggers) < MOST_ROWS)

    def _sort_unique(self, triggers: NDArray[Any]) -> NDArray[Any]:
        if len(triggers) < len(self.memory) // _FEW:
            return np.sort(triggers)
        marked = np.zeros(len(self.memory), np.bool_)
        marked[triggers] = True
        return np.flatnonzero(marked)

    def _find_prefixes(self, database: sqlite3.Connection, query: Query) -> NDArray[Any]:
        words = split_words([parts for parts, _ in query.terms])
        terms = []
        for parts, (_, beginning) in zip(words, query.terms, strict=True):
            known = [_look_up(database, word, beginning=False) for word in parts[:-1]]
            known += [_look_up(database, word, beginning=beginning) for word in parts[-1:]]
            if not known or None in known:
                return np.empty(0, np.int64)
            terms.append([pair for pair in known if pair is not None])
        rows: NDArray[Any] | None = None
        for term in sorted(terms, key=self._size):
            places = self._find_starts(term)
            rows = self._containing(places, len(term)) if rows is None else self._filter(rows, places, len(term))
        return np.empty(0, np.int64) if rows is None else rows

    def _size(self, term: list[tuple[int, int]]) -> int:
        return min(int(self.ends[last] - (self.ends[first - 1] if first else 0)) for first, last in term)

    def _find_starts(self, term: list[tuple[int, int]]) -> Places:
        """The ascending positions of the first word of each occurrence of the term."""
        rarest = min(range(len(term)), key=lambda at: self._size([term[at]]))
        starts = self._positions(*term[rarest]) - np.uint32(rarest)
        for at, pair in enumerate(term):
            if at != rarest and len(starts):
                starts = starts[_is_in(starts + np.uint32(at), self._positions(*pair))]
        return starts

    def _positions(self, first: int, last: int) -> Places:
        places = unpack(self.packed, self.ends, first, last)
        if first < last:
            places.sort()
        return places

    def _containing(self, starts: Places, length: int) -> NDArray[Any]:
        """The rows of the prefixes that contain one of these occurrences whole. Both ends of prefixes ascend with the
        rows, so for each occurrence these are consecutive rows.
        """
        low = np.searchsorted(self.last, starts + np.uint32(length - 1))
        high = np.searchsorted(self.first, starts + np.uint32(1))
        low[1:] = np.maximum(low[1:], high[:-1])  # rows of the previous position are already included
        counts = np.maximum(high - low, 0)
        return np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))

    def _filter(self, rows: NDArray[Any], starts: Places, length: int) -> NDArray[Any]:
        if not len(starts):
            return rows[:0]
        next_start = np.searchsorted(starts, self.first[rows])
        there = next_start < len(starts)
        ends = starts[np.where(there, next_start, 0)] + np.uint32(length - 1)
        kept: NDArray[Any] = rows[there & (ends <= self.last[rows])]
        return kept


def _look_up(database: sqlite3.Connection, word: str, *, beginning: bool) -> tuple[int, int] | None:
    """The smallest and largest number of the word, or of words with this prefix; None if there is none."""
    upper = word + "\U0010ffff" if beginning else word
    row = database.execute("SELECT min(number), max(number) FROM words WHERE word BETWEEN ? AND ?", (word, upper))
    first, last = row.fetchone()
    return None if first is None else (first, last)


def _is_in(queries: Places, places: Places) -> NDArray[np.bool_]:
    if not len(places):
        return np.zeros(len(queries), np.bool_)
    at = np.searchsorted(places, queries)
    return np.equal(places[np.where(at < len(places), at, 0)], queries)
