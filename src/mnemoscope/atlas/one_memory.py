"""One memory of an atlas, as readable tables: triggers, value, activity, neighbours, patterns.

Reads only the rows of this memory. Every table is the stored one with text columns added; no number is computed here.
"""

from typing import Any

import polars as pl

from mnemoscope.atlas.schema import HISTOGRAM_EDGES
from mnemoscope.atlas.tables import Tables
from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.errors import AtlasDamaged, OptionError
from mnemoscope.memory import MemoryId


class Memory:
    """The pair (key, value) that `id` names, seen through what mining found."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary, id: MemoryId) -> None:
        self.id = id
        self._tables = tables
        self._vocabulary = vocabulary

    def __repr__(self) -> str:
        return f"<Memory {self.id} of {self._tables.directory}>"

    def triggers(self, sign: int | None = 1) -> pl.DataFrame:
        """The triggers of one sign (+1 or -1; None: both), best first, possibly none.

        Added: `trigger_text` (the last token of the prefix), `next_text` (null at a sentence's end), `prefix` (the
        prefix's tokens as text) and `text` (the whole sentence as stored).
        """
        if sign not in (1, -1, None):
            raise OptionError(f"sign {sign!r} is not 1, -1 or None (both)")
        rows = self._rows("triggers")
        if sign is not None:
            rows = rows.filter(pl.col("sign") == sign)
        ids = rows["sentence"].to_list()
        stored = self._tables.sentences(ids, columns=["sentence", "text", "tokens"])
        prefixes = self._tables.prefixes(rows.select("sentence", "position").rows(), stored=stored)
        texts = dict(stored.select("sentence", "text").iter_rows())
        return rows.with_columns(
            self._texts("trigger_text", rows["token"]),
            self._texts("next_text", rows["next_token"]),
            _strings("prefix", [self._vocabulary.text(tokens) for tokens in prefixes]),
            _strings("text", [texts[id] for id in ids]),
        )

    def value(self) -> pl.DataFrame:
        """One row: what the value vector says over the vocabulary, with `top_texts`, `bottom_texts`, `target_text`.

        Raises AtlasUnfinished in a part, which has no values yet.
        """
        row = self._only_row("values")
        top, bottom = (self._vocabulary.each_text(row[name][0].to_list()) for name in ("top_tokens", "bottom_tokens"))
        return row.with_columns(
            pl.Series("top_texts", [top], dtype=pl.List(pl.String)),
            pl.Series("bottom_texts", [bottom], dtype=pl.List(pl.String)),
            self._texts("target_text", row["target"]),
        )

    def activity(self) -> pl.DataFrame:
        """One row: how often and how strongly the memory fires, with the 35 `edges` of its histogram's 36 bins."""
        return self._only_row("activity").with_columns(
            pl.Series("edges", [list(HISTOGRAM_EDGES)], dtype=pl.List(pl.Float64))
        )

    def neighbours(self) -> pl.DataFrame:
        """The memories with the most similar values, best first, with their `name` and their value's `top_text`."""
        rows = self._rows("neighbours")
        others = [MemoryId(*place) for place in rows.select("other_layer", "other_memory").iter_rows()]
        tops = [Memory(self._tables, self._vocabulary, other).top_token() for other in others]
        return rows.with_columns(
            _strings("name", [str(other) for other in others]), _strings("top_text", self._vocabulary.each_text(tops))
        )

    def patterns(self) -> pl.DataFrame:
        """What the triggers have in common; raises AtlasUnfinished where patterns were not made."""
        table = self._tables.whole("patterns")
        return table.filter((pl.col("layer") == self.id.layer) & (pl.col("memory") == self.id.memory))

    def top_token(self) -> int:
        """The token that the value ranks first."""
        return int(self._only_row("values", columns=["memory", "top_tokens"])["top_tokens"][0][0])

    def _rows(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        return self._tables.having(name, self.id.layer, column="memory", ids=[self.id.memory], columns=columns)

    def _only_row(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        rows = self._rows(name, columns=columns)
        if rows.height != 1:
            raise AtlasDamaged(f"{self._tables.directory}: table {name} has {rows.height} rows for {self.id}, not one")
        return rows

    def _texts(self, name: str, tokens: pl.Series) -> pl.Series:
        return _strings(name, self._vocabulary.each_text(tokens.to_list()))


def _strings(name: str, values: list[Any]) -> pl.Series:
    return pl.Series(name, values, dtype=pl.String)
