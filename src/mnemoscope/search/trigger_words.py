"""Searches triggers, by the word at the trigger and by the prefix. A sentence is one match, whatever fires in it.

Without polars, whose threads a forked process lacks.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.foundation.formatting import pluralise
from mnemoscope.foundation.options.search_fields import SEARCH_FIELDS
from mnemoscope.search.arrays import read_arrays
from mnemoscope.search.database import MOST_ROWS, MemoryNumbering, Ranges, lie_within, match_rows
from mnemoscope.search.matches import Hit, Matches
from mnemoscope.search.text import Query, highlight
from mnemoscope.search.windows import Windows

WORDS, TRIGGERS = SEARCH_FIELDS[2:4]
MOST_NAMES = 100
"""Memories of a sentence that are named."""
_NUMBERS = ("field", "memory", "count", "rank", "sentence", "position")
_RANKED = np.dtype([("score", np.float64), *((name, np.int64) for name in _NUMBERS)])


@dataclass(frozen=True)
class IndexedTriggers:
    """`memory`, `rank` and `place` are per trigger, by rank and memory; `sentence`, `position` and `left` (tokens of
    the word behind the trigger token) per place.
    """

    memory: NDArray[Any]
    rank: NDArray[Any]
    place: NDArray[Any]
    sentence: NDArray[Any]
    position: NDArray[Any]
    left: NDArray[Any]
    windows: Windows

    @staticmethod
    def read(database: sqlite3.Connection, windows: Windows) -> "IndexedTriggers":
        arrays = read_arrays(database)
        arrays |= {name: arrays[name].astype(np.intp) for name in ("memory", "place") if name in arrays}  # fast indices
        try:
            return IndexedTriggers(**arrays, windows=windows)
        except TypeError as wrong:
            raise sqlite3.DatabaseError(f"arrays are missing: {wrong}") from None

    def at(self, places: NDArray[Any], within: Ranges) -> NDArray[Any]:
        """The triggers at these places, the strongest first."""
        marked = np.zeros(len(self.sentence), np.bool_)
        marked[places] = True
        triggers = np.flatnonzero(marked[self.place])
        return triggers[lie_within(self.memory[triggers], within)]


@dataclass(frozen=True)
class TriggerFields:
    """`names`: WORDS, TRIGGERS or both; a memory counts in the first that it matches."""

    names: Sequence[str]
    database: sqlite3.Connection
    numbering: MemoryNumbering
    triggers: IndexedTriggers

    def find(self, query: Query, within: Ranges, page: slice) -> Matches:
        """One match for each sentence: the best trigger of the best memory whose best trigger lies in it."""
        places = []
        for name in self.names:
            column, expression = "context", f"({query.every})"
            if name == WORDS:
                others = f" AND ({query.every})" if query.several else ""
                column, expression = "word", f"({query.any}){others}"
            places.append(match_rows(self.database, "place_text", column, expression, MOST_ROWS))
        each = zip(self.names, places, strict=True)
        rankings = [self._rank(name, self.triggers.at(where, within)) for name, where in each]
        ranked = _keep_first(np.concatenate(rankings), "memory")
        sentences = _keep_first(ranked, "sentence")
        shown = sentences[page]
        firing = self._list_firing(np.concatenate(places), within, ranked, shown["sentence"])
        windows = self.triggers.windows.read(self.database, shown[["sentence", "position"]].tolist())
        reading = self.triggers.windows.reading
        names = [self.names[at] for at in shown["field"].tolist()]
        texts = [w.completed if name == WORDS else w.prefix for w, name in zip(windows, names, strict=True)]
        rows = shown[["memory", "score", "count", "rank", "sentence", "position"]].tolist()
        hits = []
        for name, parts, (memory, score, count, rank, sentence, position) in zip(
            names, highlight(texts, query), rows, strict=True
        ):
            number, memories = firing[sentence]
            named = tuple(map(self.numbering.id, dict.fromkeys([memory, *memories])))[:MOST_NAMES]
            detail = f"{pluralise(count, reading.words['prefix'], reading.words['prefixes'])}, best rank {rank}"
            detail += "" if reading.causal else f" at position {position}"
            hits.append(Hit(named[0], name, parts, score, count, rank, detail, named, sentence, number))
        totals = {name: len(ranking) for name, ranking in zip(self.names, rankings, strict=True)}
        return Matches(hits, len(sentences), totals, exact=all(len(each) < MOST_ROWS for each in places))

    def _rank(self, name: str, triggers: NDArray[Any]) -> NDArray[Any]:
        """The memories by the number of matching triggers, then by the best one, with its place. At a trigger before
        the last but one token of its word, the word is one of several that begin so: with k tokens to come it counts
        1 / k.
        """
        indexed = self.triggers
        memories = indexed.memory[triggers]
        counts = np.bincount(memories)
        scores = counts
        if name == WORDS:
            scores = np.bincount(memories, 1 / np.maximum(indexed.left[indexed.place[triggers]], 1)).round(6)
        best = np.empty(len(counts), np.int64)
        best[memories[::-1]] = triggers[::-1]  # each memory's first trigger is written last
        matched = np.flatnonzero(counts)
        matched = matched[np.lexsort((best[matched], -scores[matched]))]
        place = indexed.place[best[matched]]
        ranked = np.empty(len(matched), _RANKED)
        ranked["field"], ranked["memory"] = self.names.index(name), matched
        ranked["score"], ranked["count"], ranked["rank"] = scores[matched], counts[matched], indexed.rank[best[matched]]
        ranked["sentence"], ranked["position"] = indexed.sentence[place], indexed.position[place]
        return ranked

    def _list_firing(
        self, places: NDArray[Any], within: Ranges, ranked: NDArray[Any], sentences: NDArray[Any]
    ) -> dict[int, tuple[int, list[int]]]:
        """How many memories have a matching trigger in each sentence, and the first of them, as `ranked`."""
        indexed, sentences = self.triggers, np.sort(sentences)
        triggers = indexed.at(places[np.isin(indexed.sentence[places], sentences)], within)
        order = np.zeros(int(ranked["memory"].max(initial=0)) + 1, np.int64)
        order[ranked["memory"]] = np.arange(len(ranked))
        which = np.searchsorted(sentences, indexed.sentence[indexed.place[triggers]])
        pairs = np.unique(which << 32 | order[indexed.memory[triggers]])
        ends = np.searchsorted(pairs, np.arange(len(sentences) + 1) << 32).tolist()
        memories = ranked["memory"][pairs & 0xFFFFFFFF]
        each = zip(sentences.tolist(), ends, ends[1:], strict=False)
        return {one: (end - begin, memories[begin : min(end, begin + MOST_NAMES)].tolist()) for one, begin, end in each}


def _keep_first(rows: NDArray[Any], column: str) -> NDArray[Any]:
    """The rows whose value in the column no row before them has."""
    _, first = np.unique(rows[column], return_index=True)
    return rows[np.sort(first)]
