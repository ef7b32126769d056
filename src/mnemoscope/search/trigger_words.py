"""Searches the triggers: by the word at the trigger, and by the prefix. A sentence is one match, whatever fires in it."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.search.arrays import read_arrays
from mnemoscope.search.database import EVERYWHERE, MOST_ROWS, Ranges, lie_within
from mnemoscope.search.matches import Match, Matches, count_of
from mnemoscope.search.text import Query, highlight
from mnemoscope.search.windows import Windows

WORDS, TRIGGERS = "words", "triggers"
_EXPRESSIONS = {WORDS: "{{word}} : ({0.any}) AND ({0.every})", TRIGGERS: "{{context}} : ({0.every})"}
_PLACES = "SELECT group_concat(rowid) FROM (SELECT rowid FROM place_text WHERE place_text MATCH ? LIMIT ?)"


@dataclass(frozen=True)
class TriggerPlaces:
    """`memory`, `rank` and `place` are per trigger, by rank and memory; `sentence` and `position` per place."""

    memory: NDArray[Any]
    rank: NDArray[Any]
    place: NDArray[Any]
    sentence: NDArray[Any]
    position: NDArray[Any]
    windows: Windows

    @staticmethod
    def read(database: sqlite3.Connection, raw: Sequence[bytes], *, spaced: bool) -> "TriggerPlaces":
        try:
            return TriggerPlaces(**read_arrays(database), windows=Windows(raw, spaced=spaced))
        except TypeError as wrong:
            raise sqlite3.DatabaseError(f"arrays are missing: {wrong}") from None

    def at(self, places: NDArray[Any], within: Ranges) -> NDArray[Any]:
        """The triggers at these places, the strongest first."""
        marked = np.zeros(len(self.sentence), np.bool_)
        marked[places] = True
        triggers = np.flatnonzero(marked[self.place])
        return triggers if within == EVERYWHERE else triggers[lie_within(self.memory[triggers], within)]


@dataclass(frozen=True)
class _Ranking:
    """The memories of one field by the number of matching triggers, then by the best one."""

    memory: NDArray[Any]
    count: NDArray[Any]
    best: NDArray[Any]


@dataclass(frozen=True)
class TriggerFields:
    """`names`: WORDS, TRIGGERS or both; a memory counts in the first that it matches."""

    names: Sequence[str]
    database: sqlite3.Connection
    triggers: TriggerPlaces

    def find(self, query: Query, within: Ranges, page: slice) -> Matches:
        """One match for each sentence: the best trigger of the best memory whose best trigger lies in it."""
        every = [self._places(_EXPRESSIONS[name].format(query)) for name in self.names]
        rankings = [self._rank(self.triggers.at(places, within)) for places in every]
        memory = np.concatenate([ranking.memory for ranking in rankings])
        _, first = np.unique(memory, return_index=True)
        own = np.sort(first)  # a memory once, in the first field
        memory = memory[own]
        count, best = (np.concatenate([getattr(r, name) for r in rankings])[own] for name in ("count", "best"))
        field = np.repeat(np.arange(len(rankings)), [len(ranking.memory) for ranking in rankings])[own]
        _, leads = np.unique(self.triggers.sentence[self.triggers.place[best]], return_index=True)
        leads.sort()
        firing = self._firing(np.unique(np.concatenate(every)), within, memory, best[shown := leads[page]])
        places = self.triggers.place[best[shown]]
        where = zip(self.triggers.sentence[places].tolist(), self.triggers.position[places].tolist(), strict=True)
        windows = self.triggers.windows.read(self.database, list(where))
        names = [self.names[at] for at in field[shown].tolist()]
        texts = [w.completed if name == WORDS else w.prefix for w, name in zip(windows, names, strict=True)]
        numbers = (memory[shown], count[shown], self.triggers.rank[best[shown]], self.triggers.sentence[places])
        columns = (column.tolist() for column in numbers)
        matches = []
        for name, parts, lead, counted, rank, sentence in zip(names, highlight(texts, query), *columns, strict=True):
            memories = list(dict.fromkeys([lead, *firing[sentence]]))
            detail = f"{count_of(counted, 'prefix', 'prefixes')}, best rank {rank}"
            detail += f"; {len(memories):,} memories fire in it" if len(memories) > 1 else ""
            matches.append(Match(memories, name, parts, counted, counted, rank, detail, sentence))
        totals = {name: len(ranking.memory) for name, ranking in zip(self.names, rankings, strict=True)}
        return Matches(matches, len(leads), totals, exact=all(len(places) < MOST_ROWS for places in every))

    def _places(self, expression: str) -> NDArray[Any]:
        ((found,),) = self.database.execute(_PLACES, (expression, MOST_ROWS))
        return np.fromstring(found, np.int64, sep=",") if found else np.empty(0, np.int64)

    def _rank(self, triggers: NDArray[Any]) -> _Ranking:
        memories = self.triggers.memory[triggers]
        counts = np.bincount(memories)
        best = np.empty(len(counts), np.int64)
        best[memories[::-1]] = triggers[::-1]  # each memory's first trigger is written last
        found = np.flatnonzero(counts)
        # One sort key for the descending count and the best trigger, since there are fewer than 2 ** 32 triggers.
        found = found[np.argsort(-(counts[found] << 32) + best[found])]
        return _Ranking(found, counts[found], best[found])

    def _firing(
        self, places: NDArray[Any], within: Ranges, ranked: NDArray[Any], shown: NDArray[Any]
    ) -> dict[int, list[int]]:
        """The memories with a matching trigger in the sentence of each of the triggers `shown`, as `ranked`."""
        sentences = np.sort(self.triggers.sentence[self.triggers.place[shown]])
        triggers = self.triggers.at(places[np.isin(self.triggers.sentence[places], sentences)], within)
        order = np.empty(int(ranked.max(initial=-1)) + 1, np.int64)
        order[ranked] = np.arange(len(ranked))
        pairs = np.stack([self.triggers.sentence[self.triggers.place[triggers]], order[self.triggers.memory[triggers]]])
        firing: dict[int, list[int]] = {sentence: [] for sentence in sentences.tolist()}
        for sentence, at in np.unique(pairs.T, axis=0).tolist():
            firing[sentence].append(int(ranked[at]))
        return firing
