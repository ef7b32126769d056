"""One memory of an atlas, as readable tables: triggers, value, activity, neighbours, patterns.

Reads only the rows of this memory. Every table is the stored one with text columns added; no number is computed here.
"""

from typing import TYPE_CHECKING, Any

import polars as pl

from mnemoscope.atlas.schema import HISTOGRAM_EDGES
from mnemoscope.errors import AtlasDamaged, OptionError
from mnemoscope.memory import MemoryId

if TYPE_CHECKING:
    from mnemoscope.atlas.read import Atlas


class Memory:
    """The pair (key, value) that `id` names, seen through what mining found."""

    def __init__(self, atlas: "Atlas", id: MemoryId) -> None:
        self.atlas = atlas
        self.id = id

    def __repr__(self) -> str:
        return f"<Memory {self.id} of {self.atlas.path}>"

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
        columns = ["sentence", "text", "tokens"]
        stored = self.atlas.sentences(rows["sentence"].to_list(), columns=columns) if rows.height else None
        texts: dict[int, tuple[str, list[int]]] = {}
        if stored is not None:
            texts = dict(
                zip(stored["sentence"], zip(stored["text"], stored["tokens"].to_list(), strict=True), strict=True)
            )
        prefixes = []
        for sentence, position in rows.select("sentence", "position").iter_rows():
            tokens = texts[sentence][1]
            if position >= len(tokens):
                raise AtlasDamaged(f"{self.atlas.path}: {self.id} names position {position} of sentence {sentence}")
            prefixes.append(self.atlas.token_bytes(tokens[: position + 1]).decode("utf-8", "replace"))
        return rows.with_columns(
            _texts("trigger_text", self.atlas.token_text(rows["token"].to_list())),
            _texts("next_text", self.atlas.token_text(rows["next_token"].to_list())),
            _texts("prefix", prefixes),
            _texts("text", [texts[sentence][0] for sentence in rows["sentence"]]),
        )

    def value(self) -> pl.DataFrame:
        """One row: what the value vector says over the vocabulary, with `top_texts`, `bottom_texts`, `target_text`.

        Raises AtlasUnfinished in a part, which has no values yet.
        """
        row = self._only_row("values")
        top, bottom = (self.atlas.token_text(row[name][0].to_list()) for name in ("top_tokens", "bottom_tokens"))
        return row.with_columns(
            pl.Series("top_texts", [top], dtype=pl.List(pl.String)),
            pl.Series("bottom_texts", [bottom], dtype=pl.List(pl.String)),
            _texts("target_text", self.atlas.token_text(row["target"].to_list())),
        )

    def activity(self) -> pl.DataFrame:
        """One row: how often and how strongly the memory fires, with the 35 `edges` of its histogram's 36 bins."""
        return self._only_row("activity").with_columns(
            pl.Series("edges", [list(HISTOGRAM_EDGES)], dtype=pl.List(pl.Float64))
        )

    def neighbours(self) -> pl.DataFrame:
        """The memories with the most similar values, best first, with their `name` and their value's `top_text`."""
        rows = self._rows("neighbours")
        names, tops = [], []
        for layer, memory in rows.select("other_layer", "other_memory").iter_rows():
            other = self.atlas[MemoryId(layer, memory)]
            names.append(str(other.id))
            tops.append(other.top_token())
        return rows.with_columns(_texts("name", names), _texts("top_text", self.atlas.token_text(tops)))

    def patterns(self) -> pl.DataFrame:
        """What the triggers have in common; raises AtlasUnfinished where patterns were not made."""
        table = self.atlas.table("patterns")
        return table.filter((pl.col("layer") == self.id.layer) & (pl.col("memory") == self.id.memory))

    def top_token(self) -> int:
        """The token that the value ranks first."""
        return int(self._only_row("values", columns=["memory", "top_tokens"])["top_tokens"][0][0])

    def _rows(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        tables, layer = self.atlas.tables, self.id.layer
        return tables.having(name, layer, column="memory", ids=[self.id.memory], columns=columns)

    def _only_row(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        rows = self._rows(name, columns=columns)
        if rows.height != 1:
            raise AtlasDamaged(f"{self.atlas.path}: table {name} has {rows.height} rows for {self.id}, not one")
        return rows


def _texts(name: str, values: list[Any]) -> pl.Series:
    return pl.Series(name, values, dtype=pl.String)
