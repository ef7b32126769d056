"""Which prefixes have the words of a query: looked up in the places of every word and of every prefix.

`stretches.py` says what places are. The index file holds them as arrays, which are read once for all threads. Finds
whole prefixes by their words; what is then shown of them is put together in fields.py.
"""

import sqlite3
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.search.arrays import read_arrays
from mnemoscope.search.counts_below import CountsBelow
from mnemoscope.search.database import EVERYWHERE, MOST_ROWS, Ranges, lie_within
from mnemoscope.search.postings import unpack
from mnemoscope.search.text import Query, split_words

Places = NDArray[np.uint32]
_FEW = 16
"""Of fewer than one in so many triggers the numbers are sorted; more are marked among all."""


@dataclass(frozen=True)
class Matches:
    """The triggers that match, the strongest of all memories first: its number, its memory. `exact`: none left out."""

    triggers: NDArray[Any]
    memories: NDArray[Any]
    exact: bool


@dataclass(frozen=True)
class TriggerWords:
    """The arrays of one index.

    `first`, `last` and `trigger` are of every prefix: the places of its words and whose it is, sorted by `last`.
    `memory`, `rank`, `sentence` and `position` are of every trigger, in the order of their numbers: by rank and then by
    memory. `packed` and `ends` are every word's places.
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
        """The arrays of an index; raises sqlite3.DatabaseError where they are damaged."""
        found = read_arrays(database)
        if not found:
            none, packed = np.empty(0, np.uint32), np.empty(0, np.uint8)
            return TriggerWords(none, none, none, none, none, none, none, packed, np.empty(0, np.int64))
        try:
            last, words = found["last"].astype(np.uint32), found["words"].astype(np.uint32)
            return TriggerWords(
                first=last + np.uint32(1) - words,
                last=last,
                **{name: found[name] for name in ("trigger", "memory", "rank", "sentence", "position")},
                packed=found["packed"],
                ends=np.cumsum(found["bytes"], dtype=np.int64),
            )
        except KeyError as missing:
            raise sqlite3.DatabaseError(f"array {missing} is missing") from None

    @cached_property
    def _before_first(self) -> CountsBelow:
        """Of every place how many prefixes begin before it."""
        return CountsBelow.of(self.first)

    @cached_property
    def _before_last(self) -> CountsBelow:
        """Of every place how many prefixes end before it."""
        return CountsBelow.of(self.last)

    def find(self, database: sqlite3.Connection, query: Query, within: Ranges) -> Matches:
        """The triggers that have all of the query; of more than MOST_ROWS the strongest of every memory."""
        found = self._in_order(self.trigger[self._prefixes(database, query)])
        if within != EVERYWHERE:
            found = found[lie_within(self.memory[found], within)]
        kept = found[:MOST_ROWS]
        return Matches(kept, self.memory[kept], exact=len(found) < MOST_ROWS)

    def _in_order(self, triggers: NDArray[Any]) -> NDArray[Any]:
        """Different triggers, the strongest first."""
        if len(triggers) < len(self.memory) // _FEW:
            return np.sort(triggers)
        marked = np.zeros(len(self.memory), np.bool_)
        marked[triggers] = True
        return np.flatnonzero(marked)

    def _prefixes(self, database: sqlite3.Connection, query: Query) -> NDArray[Any]:
        """The rows of the prefixes in which every term stands."""
        words = split_words([said for said, _ in query.terms])
        terms = []
        for said, (_, beginning) in zip(words, query.terms, strict=True):
            known = [_look_up(database, word, beginning=False) for word in said[:-1]]
            known += [_look_up(database, word, beginning=beginning) for word in said[-1:]]
            if not known or None in known:
                return np.empty(0, np.int64)
            terms.append([pair for pair in known if pair is not None])
        found: NDArray[Any] | None = None
        for term in sorted(terms, key=self._size):
            places = self._stand(term)
            found = self._around(places, len(term)) if found is None else self._keep(found, places, len(term))
        return np.empty(0, np.int64) if found is None else found

    def _size(self, term: list[tuple[int, int]]) -> int:
        """Bytes of the places of the rarest word."""
        return min(int(self.ends[last] - (self.ends[first - 1] if first else 0)) for first, last in term)

    def _stand(self, term: list[tuple[int, int]]) -> Places:
        """The places where the term begins, in order: its words follow one another."""
        rarest = min(range(len(term)), key=lambda at: self._size([term[at]]))
        starts = self._places(*term[rarest]) - np.uint32(rarest)
        for at, pair in enumerate(term):
            if at != rarest and len(starts):
                starts = starts[_are_in(starts + np.uint32(at), self._places(*pair))]
        return starts

    def _places(self, first: int, last: int) -> Places:
        found = unpack(self.packed, self.ends, first, last)
        if first < last:
            found.sort()
        return found

    def _around(self, starts: Places, length: int) -> NDArray[Any]:
        """The rows of the prefixes that hold one of these terms whole: they end behind it and begin before it.

        Both ends grow with the rows, so these are the rows from one number on up to another, and both numbers grow
        with the places.
        """
        low = self._before_last.below(starts + np.uint32(length - 1))
        high = self._before_first.below(starts + np.uint32(1))
        low[1:] = np.maximum(low[1:], high[:-1])  # those of one place before are there already
        counts = np.maximum(high - low, 0)
        return np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))

    def _keep(self, rows: NDArray[Any], starts: Places, length: int) -> NDArray[Any]:
        """Those of the rows whose prefix holds one of these terms whole."""
        if not len(starts):
            return rows[:0]
        next_start = np.searchsorted(starts, self.first[rows])
        there = next_start < len(starts)
        ends = starts[np.where(there, next_start, 0)] + np.uint32(length - 1)
        kept: NDArray[Any] = rows[there & (ends <= self.last[rows])]
        return kept


def _look_up(database: sqlite3.Connection, word: str, *, beginning: bool) -> tuple[int, int] | None:
    """The numbers, first and last, of the word, or of the words that begin so; None for no word."""
    upper = word + "\U0010ffff" if beginning else word
    found = database.execute("SELECT min(number), max(number) FROM words WHERE word BETWEEN ? AND ?", (word, upper))
    first, last = found.fetchone()
    return None if first is None else (first, last)


def _are_in(asked: Places, places: Places) -> NDArray[np.bool_]:
    if not len(places):
        return np.zeros(len(asked), np.bool_)
    at = np.searchsorted(places, asked)
    return np.equal(places[np.where(at < len(places), at, 0)], asked)
