"""Searches triggers, by the word at the trigger and by the prefix. A sentence is one match, whatever fires in it."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.search.arrays import read_arrays
from mnemoscope.search.database import EVERYWHERE, MOST_ROWS, Ranges, lie_within
from mnemoscope.search.matches import Match, Matches, count_of
from mnemoscope.search.text import Query, highlight
from mnemoscope.search.windows import Windows

WORDS, TRIGGERS = "words", "triggers"
MOST_NAMES = 100
"""Memories of a sentence that are named."""
_PLACES = "SELECT group_concat(rowid) FROM (SELECT rowid FROM place_text WHERE place_text MATCH ? LIMIT ?)"


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
    def read(database: sqlite3.Connection, raw: Sequence[bytes], *, spaced: bool) -> "IndexedTriggers":
        try:
            return IndexedTriggers(**read_arrays(database), windows=Windows(raw, spaced=spaced))
        except TypeError as wrong:
            raise sqlite3.DatabaseError(f"arrays are missing: {wrong}") from None

    def at(self, places: NDArray[Any], within: Ranges) -> NDArray[Any]:
        """The triggers at these places, the strongest first."""
        marked = np.zeros(len(self.sentence), np.bool_)
        marked[places] = True
        triggers = np.flatnonzero(marked[self.place])
        return triggers if within == EVERYWHERE else triggers[lie_within(self.memory[triggers], within)]


@dataclass(frozen=True)
class TriggerFields:
    """`names`: WORDS, TRIGGERS or both; a memory counts in the first that it matches."""

    names: Sequence[str]
    database: sqlite3.Connection
    triggers: IndexedTriggers

    def find(self, query: Query, within: Ranges, page: slice) -> Matches:
        """One match for each sentence: the best trigger of the best memory whose best trigger lies in it."""
        places = [self._find_places(name, query) for name in self.names]
        each = zip(self.names, places, strict=True)
        rankings = [self._rank(name, self.triggers.at(own, within)) for name, own in each]
        ranked = pl.concat(rankings).unique("memory", keep="first", maintain_order=True)
        sentences = ranked.unique("sentence", keep="first", maintain_order=True)
        shown = sentences[page]
        firing = self._list_firing(np.concatenate(places), within, ranked, shown["sentence"])
        windows = self.triggers.windows.read(self.database, shown.select("sentence", "position").rows())
        texts = [
            window.completed if name == WORDS else window.prefix
            for window, name in zip(windows, shown["field"], strict=True)
        ]
        matches = [
            Match(
                memories=list(dict.fromkeys([row["memory"], *firing[row["sentence"]][1]]))[:MOST_NAMES],
                firing=firing[row["sentence"]][0],
                detail=f"{count_of(row['count'], 'prefix', 'prefixes')}, best rank {row['rank']}",
                parts=parts,
                **{name: row[name] for name in ("field", "score", "count", "rank", "sentence")},
            )
            for row, parts in zip(shown.iter_rows(named=True), highlight(texts, query), strict=True)
        ]
        totals = {name: ranking.height for name, ranking in zip(self.names, rankings, strict=True)}
        return Matches(matches, sentences.height, totals, exact=all(len(own) < MOST_ROWS for own in places))

    def _find_places(self, name: str, query: Query) -> NDArray[Any]:
        expression = f"{{context}} : ({query.every})"
        if name == WORDS:
            others = f" AND ({query.every})" if len(query.terms) > 1 else ""
            expression = f"{{word}} : ({query.any}){others}"
        ((found,),) = self.database.execute(_PLACES, (expression, MOST_ROWS))
        return np.fromstring(found, np.int64, sep=",") if found else np.empty(0, np.int64)

    def _rank(self, name: str, triggers: NDArray[Any]) -> pl.DataFrame:
        """The memories by the number of matching triggers, then by the best one, with its place. At a trigger before
        the last but one token of its word, the word is one of several that begin so: with k tokens to come it counts
        1 / k.
        """
        own = self.triggers
        memories = own.memory[triggers]
        counts = np.bincount(memories)
        scores = counts
        if name == WORDS:
            scores = np.bincount(memories, 1 / np.maximum(own.left[own.place[triggers]], 1)).round(6)
        best = np.empty(len(counts), np.int64)
        best[memories[::-1]] = triggers[::-1]  # each memory's first trigger is written last
        found = np.flatnonzero(counts)
        found = found[np.lexsort((best[found], -scores[found]))]
        place = own.place[best[found]]
        numbers = {"memory": found, "count": counts[found], "rank": own.rank[best[found]]}
        numbers |= {"sentence": own.sentence[place], "position": own.position[place]}
        columns = {column: each.astype(np.int64) for column, each in numbers.items()}
        return pl.DataFrame({**columns, "score": scores[found].astype(np.float64)}).with_columns(field=pl.lit(name))

    def _list_firing(
        self, places: NDArray[Any], within: Ranges, ranked: pl.DataFrame, sentences: pl.Series
    ) -> dict[int, tuple[int, list[int]]]:
        """How many memories have a matching trigger in each sentence, and the first of them, as `ranked`."""
        own = self.triggers
        triggers = own.at(places[np.isin(own.sentence[places], sentences.to_numpy())], within)
        columns = {"sentence": own.sentence[own.place[triggers]], "memory": own.memory[triggers]}
        pairs = pl.DataFrame({name: column.astype(np.int64) for name, column in columns.items()}).unique()
        order = ranked.select("memory").with_row_index("order")
        memories = pairs.join(order, on="memory").sort("order").group_by("sentence")
        named = memories.agg(pl.len(), pl.col("memory").head(MOST_NAMES))
        return {sentence: (count, first) for sentence, count, first in named.iter_rows()}
