"""A finished atlas, opened for reading: its manifest, its tables, and its memories by name.

Opening reads the manifest only. An unfinished, damaged or newer atlas is refused, and so is a table of another atlas.
Needs no torch and never writes.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from mnemoscope.atlas.experts import as_stored
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.manifest import read_sealed
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.tables import Tables
from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished, MemoryIdError, OptionError
from mnemoscope.foundation.formatting import before_token, html_row, html_table, runs, show_text, show_token
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, MemoryId, Numbering
from mnemoscope.foundation.near_duplicates import fold_triggers
from mnemoscope.foundation.reading import Reading

T = TypeVar("T")
BEST_TRIGGERS = 25
"""Triggers per memory in which patterns are sought (paper, section 3.1)."""
_SHOWN, _PREFIX_CHARACTERS, _PROMOTED = 8, 60, 10
"""What a notebook shows of a memory: prefixes, characters of each before the trigger token, and tokens of the value."""

_LAYERS_AT_ONCE = 4


def first_upper_layer(depth: int) -> int:
    """The first upper layer of `depth` layers, corresponding to 11 of the paper's 1-16: ceil(10 * depth / 16)."""
    return -(-10 * depth // 16)


def open_atlas(path: str | Path) -> "Atlas":
    """The atlas in the folder `path`.

    Raises AtlasNotFound, AtlasUnfinished, AtlasTooNew or AtlasDamaged. A part (`mine --part I/N`) opens too, but has no
    values or neighbours: reading them raises AtlasUnfinished.
    """
    directory = Path(path)
    return Atlas(directory, *read_sealed(directory))


class Atlas(Tables):
    """One atlas: `atlas["L10.M222"]` is a memory, `atlas.table("triggers", layer=10)` a table.

    `manifest_hash` is the sha256 of the manifest as it was opened.
    """

    def __init__(self, path: Path, manifest: Manifest, manifest_hash: str) -> None:
        super().__init__(path, manifest, manifest_hash)
        self.layers: tuple[int, ...] = tuple(manifest.layers)
        self._memories = manifest.model.sizes.memories

    def __repr__(self) -> str:
        return f"<Atlas {self.path}: {self.range_text()}>"

    def _repr_html_(self) -> str:
        model, corpus = self.manifest.model, self.manifest.corpus
        tokens = corpus.counts.get("mined_tokens")
        read = None if tokens is None else f"{tokens:,} tokens"
        rows = [
            html_row("model", [", ".join(filter(None, (model.spec, model.family, model.block, model.activation)))]),
            html_row("text", [", ".join(filter(None, (corpus.spec, read)))]),
            html_row("memories", [f"{sum(map(self.memories, self.layers)):,} in {self.range_text()}"]),
            html_row("folder", [str(self.path)]),
        ]
        some = f"atlas[&quot;{self.name(self.layers[0], 0)}&quot;]"
        return f"<p>An atlas. <code>{some}</code> is a memory.</p>\n{html_table(rows)}"

    def memories(self, layer: int) -> int:
        """The number of memories of a layer; raises MemoryIdError for a layer that was not mined."""
        if layer not in self.layers:
            raise MemoryIdError(f"layer {layer} is not in {self.path}, which has {self.range_text()}")
        return self._memories[layer]

    def numbering(self, layer: int) -> Numbering:
        """The numbering of a mined layer's memories; raises MemoryIdError."""
        return self.numberings.get(layer, Numbering((self.memories(layer),)))

    @property
    def reading(self) -> Reading:
        """How the mined model reads a text. Where the manifest does not say, every position counts."""
        beginning = self.manifest.model.beginning
        return Reading() if (beginning.kind, beginning.token) == (None, None) else Reading.after(beginning.token)

    def name(self, layer: int, number: int) -> MemoryId:
        """The memory of that number in a layer; experts' memories are counted through."""
        return self.numbering(layer).name(layer, number)

    def number(self, memory: MemoryId) -> int:
        """The number of a memory in its layer; raises MemoryIdError for a memory that the atlas does not have."""
        number = self.numbering(memory.layer).number(memory) if memory.layer in self.layers else None
        if number is None:
            raise MemoryIdError(f"{memory} is not in {self.path}, which has {self.range_text()}")
        return number

    def range_text(self) -> str:
        """The atlas's memories in words: `layers 0-3,7 with memories 0-1023`."""
        if self.numberings:
            kinds: dict[str, list[int]] = {}
            for layer in self.layers:
                kinds.setdefault(self.numbering(layer).range_text(), []).append(layer)
            return "; ".join(f"layers {runs(layers)} with {text}" for text, layers in kinds.items())
        counts = sorted({self._memories[layer] for layer in self.layers})
        sizes = " or ".join(f"0-{count - 1}" for count in counts)
        return f"layers {runs(self.layers)} with memories {sizes}"

    def __getitem__(self, memory: str | MemoryId) -> "Memory":
        """One memory; raises MemoryIdError for a malformed name and for a memory that the atlas does not have."""
        if not isinstance(memory, str | MemoryId):
            some = self.name(self.layers[0], 0)
            raise MemoryIdError(f"{memory!r} is not the name of a memory; write atlas[{str(some)!r}], as text")
        named = MemoryId.parse(memory) if isinstance(memory, str) else memory
        self.number(named)
        return Memory(self, named)

    @property
    def upper_layers(self) -> tuple[int, ...]:
        """The mined layers that correspond to the paper's layers 11-16 of 16."""
        return tuple(layer for layer in self.layers if layer >= first_upper_layer(len(self._memories)))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.read(self)

    def best_triggers(
        self,
        layer: int,
        count: int | None = BEST_TRIGGERS,
        *,
        memories: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """The best positive triggers as stored, `count` per memory (None: all); fewer columns are read faster."""
        chosen = ("memory", "sign") if count is None else ("memory", "sign", "rank")
        read = None if columns is None else list(dict.fromkeys((*columns, *chosen)))
        if memories is None:
            rows = self.table("triggers", layer=layer, columns=read)
        else:
            rows = self.rows_where("triggers", layer, column="memory", ids=memories, columns=read)
        rows = rows.filter(pl.col("sign") == 1)
        rows = rows if count is None else rows.filter(pl.col("rank") < count)
        return rows if columns is None else rows.select(columns)

    def each_layer(self, read: Callable[[int], T]) -> list[T]:
        """`read(layer)` of every layer, several at a time: checking and decoding files keeps several cores busy."""
        with ThreadPoolExecutor(min(os.cpu_count() or 1, _LAYERS_AT_ONCE)) as pool:
            return list(pool.map(read, self.layers))

    def token_text(self, ids: Sequence[int | None]) -> list[str | None]:
        """The text of each token as in running text; None for None."""
        return self.vocabulary.each_text(ids)


class Memory:
    """The pair (key, value) that `id` names, with what mining found about it."""

    def __init__(self, atlas: Atlas, id: MemoryId) -> None:
        self.id = id
        self._atlas = atlas
        self._number = atlas.number(id)

    def __repr__(self) -> str:
        return f"<Memory {self.id} of {self._atlas.path}>"

    def _repr_html_(self) -> str:
        triggers = self.triggers().unique("prefix", keep="first", maintain_order=True).head(_SHOWN)
        columns = ("coefficient", "prefix", "trigger_text", "next_text")
        rows = [html_row("coefficient", ["prefix", "then"], tag="th")]
        for coefficient, prefix, token, following in triggers.select(columns).iter_rows():
            before = show_text(before_token(prefix, token)[-_PREFIX_CHARACTERS:])
            then = "(end)" if following is None else show_token(following)
            rows.append(html_row(f"{coefficient:.3f}", [f"{before}«{show_token(token)}»", then]))
        promoted = ""
        if self._atlas.manifest.part is None:
            tokens = self.value()["top_texts"][0].to_list()[:_PROMOTED]
            promoted = f"<p>Its value promotes {escape(', '.join(map(show_token, tokens)))}.</p>"
        model = escape(self._atlas.manifest.model.spec or "")
        heading = f"<p><b>{self.id}</b> of {model}: its strongest prefixes</p>"
        return "\n".join([heading, html_table(rows), promoted])

    def triggers(self, sign: int | None = 1) -> pl.DataFrame:
        """The triggers of one sign (+1 or -1; None: both), best first, possibly none.

        Adds `trigger_text` (the last token of the prefix), `next_text` (null at a sentence's end), `fold` (the rank of
        the first of its near-duplicates), `prefix` (the prefix's tokens as text) and `text` (the whole sentence as
        stored).
        """
        if sign not in (1, -1, None):
            raise OptionError(f"sign {sign!r} is not 1, -1 or None (both)")
        rows = self._rows("triggers")
        if sign is not None:
            rows = rows.filter(pl.col("sign") == sign)
        ids = rows["sentence"].to_list()
        stored = self._atlas.sentences(ids, columns=["sentence", "text", "tokens"])
        prefixes = self._atlas.prefixes(rows.select("sentence", "position").rows(), stored=stored)
        texts = dict(stored.select("sentence", "text").iter_rows())
        return rows.with_columns(
            self._texts("trigger_text", rows["token"]),
            self._texts("next_text", rows["next_token"]),
            pl.Series("fold", fold_triggers(rows["sign"].to_list(), rows["rank"].to_list(), prefixes), pl.Int16),
            _strings("prefix", [self._atlas.vocabulary.text(tokens) for tokens in prefixes]),
            _strings("text", [texts[id] for id in ids]),
        )

    def value(self) -> pl.DataFrame:
        """One row: the value vector over the vocabulary, with `top_texts`, `bottom_texts`, `target_text`.

        Raises AtlasUnfinished in a part, which has no values yet.
        """
        row = self._with_texts(self._with_texts(self._only_row("values"), "top"), "bottom")
        return row.with_columns(self._texts("target_text", row["target"]))

    def activity(self) -> pl.DataFrame:
        """One row: how often and how strongly the memory fires, with the 35 `edges` of its histogram's 36 bins."""
        return self._only_row("activity").with_columns(
            pl.Series("edges", [list(HISTOGRAM_EDGES)], dtype=pl.List(pl.Float64))
        )

    def neighbours(self) -> pl.DataFrame:
        """The memories with the most similar values, best first, with their `name` and their value's `top_text`."""
        rows = self._rows("neighbours")
        columns = [name for name in ("other_layer", "other_expert", "other_memory") if name in rows.columns]
        numberings = self._atlas.numberings
        others = [
            MemoryId(*place) if len(place) == 2 else numberings[place[0]].name_in(*place)
            for place in rows.select(columns).iter_rows()
        ]
        tops = [Memory(self._atlas, other).top_token() for other in others]
        return rows.with_columns(
            _strings("name", [str(other) for other in others]), _strings("top_text", self._atlas.token_text(tops))
        )

    def patterns(self) -> pl.DataFrame:
        """What the triggers have in common; raises AtlasUnfinished where patterns were not made."""
        table = self._atlas.table("patterns")
        rows = table.filter((pl.col("layer") == self.id.layer) & (pl.col("memory") == self._number))
        return as_stored(rows, self._atlas.numberings, None)

    def token_activations(self) -> pl.DataFrame:
        """The coefficients at the tokens of the best triggers' sentences: `sign`, `rank` (the trigger's), `texts` (of
        the tokens), `coefficients`. Raises AtlasUnfinished where they were not made (`mnemoscope extend`).
        """
        places = self._rows("triggers", columns=["memory", "sign", "rank", "sentence"])
        rows = self._rows("token_activations").join(places, on=["memory", "sign", "rank"], maintain_order="left")
        stored = self._atlas.sentences(rows["sentence"].to_list(), columns=["sentence", "tokens"])
        tokens = {sentence: self._atlas.vocabulary.split_text(own) for sentence, own in stored.iter_rows()}
        if rows["coefficients"].list.len().to_list() != [len(tokens[one]) for one in rows["sentence"]]:
            raise AtlasDamaged(f"{self._atlas.path}: token_activations of {self.id} do not fit its triggers' sentences")
        texts = pl.Series("texts", [tokens[one] for one in rows["sentence"]], dtype=pl.List(pl.String))
        products = pl.col("coefficients").cast(pl.List(pl.Float32)) * pl.col("scale")
        return rows.select("sign", "rank", texts, products.alias("coefficients"))

    def labels(self) -> pl.DataFrame:
        """`sign`, `label`, `promotes` of each of its features: what its triggers share, and what its value promotes;
        raises AtlasUnfinished where patterns were not made.
        """
        table = self._atlas.table("labels")
        return table.filter((pl.col("layer") == self.id.layer) & (pl.col("memory") == self._number)).select(
            "sign", "label", "promotes"
        )

    def readings(self) -> pl.DataFrame:
        """The value through every fitted lens, one row each: `lens`, `target_rank`, `top_texts`.

        `plain` is the reading of `value()`. Raises AtlasUnfinished where no lens was fitted (`mnemoscope lens`).
        """
        return self._with_texts(self._rows("readings"), "top")

    def key_readings(self) -> pl.DataFrame:
        """Words that match the key, by the lens from words to its layer: `lens`, `trigger_rank`, `key_top_texts`.

        `plain` compares it with the words' embeddings as they are, and is the only row where no lens was fitted. Raises
        AtlasUnfinished where mining did not compute it (`mnemoscope extend`).
        """
        if self._atlas.has("key_readings", layer=self.id.layer) or not self._atlas.has("roles", layer=self.id.layer):
            rows = self._rows("key_readings")
        else:
            rows = self._rows("roles").with_columns(pl.lit("plain").alias("lens"))
            rows = rows.select(TABLES["key_readings"].columns_beside(rows.columns).names)
        return self._with_texts(rows, "key_top")

    def through_lenses(self) -> dict[str, pl.DataFrame]:
        """`readings` and `key_readings`, as far as they exist."""
        frames = {}
        for name, read in (("readings", self.readings), ("key_readings", self.key_readings)):
            with suppress(AtlasUnfinished):
                frames[name] = read()
        return frames

    def top_token(self) -> int:
        return int(self._only_row("values", columns=["memory", "top_tokens"])["top_tokens"][0][0])

    def _rows(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        layer = self.id.layer
        rows = self._atlas.rows_where(name, layer, column="memory", ids=[self._number], columns=columns)
        return as_stored(rows, self._atlas.numberings, layer)

    def _only_row(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        rows = self._rows(name, columns=columns)
        if rows.height != 1:
            raise AtlasDamaged(f"{self._atlas.path}: table {name} has {rows.height} rows for {self.id}, not one")
        return rows

    def _with_texts(self, rows: pl.DataFrame, name: str) -> pl.DataFrame:
        texts = [self._atlas.token_text(tokens) for tokens in rows[f"{name}_tokens"].to_list()]
        return rows.with_columns(pl.Series(f"{name}_texts", texts, dtype=pl.List(pl.String)))

    def _texts(self, name: str, tokens: pl.Series) -> pl.Series:
        return _strings(name, self._atlas.token_text(tokens.to_list()))


def _strings(name: str, values: list[Any]) -> pl.Series:
    return pl.Series(name, values, dtype=pl.String)
