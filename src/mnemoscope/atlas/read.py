"""A finished atlas, opened for reading: its manifest, its tables, and its memories by name.

Opening reads the manifest only. An atlas that is unfinished, damaged or of another version is refused, and so is a
table of another atlas. Needs no torch and never writes.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from html import escape
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any, TypeVar, overload

import polars as pl
import polars.selectors as cs

from mnemoscope.atlas.experts import as_stored
from mnemoscope.atlas.hub.reading import settle
from mnemoscope.atlas.manifest import read_sealed
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.tables import Tables
from mnemoscope.atlas.vocabulary import Vocabulary
from mnemoscope.errors import AtlasDamaged, MemoryIdError, OptionError
from mnemoscope.foundation.formatting import Table, page_html
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, MemoryId
from mnemoscope.foundation.near_duplicates import fold_triggers
from mnemoscope.foundation.reading import Reading

T = TypeVar("T")
BEST_TRIGGERS = 25
"""Triggers per memory in which patterns are sought (paper, section 3.1)."""
_COMPLETED = 100_000
"""Names offered for completion, at most."""
_NUMBERED = re.compile(r"\s*(?:L([0-9]{1,6})\.?N|([0-9]{1,6})\.)([0-9]{1,9})\s*")
"""Other tools' names of a neuron, by its number in the layer: L3N17, L3.N17, 3.17."""


TENTH, ELEVENTH = 10, 11
"""Layers of the paper's 16, counted from 1, at which its text divides them."""


def first_layer_from(number: int, depth: int) -> int:
    """The layer, counted from 0, of a model of `depth` layers that corresponds to the paper's layer `number` of 16."""
    return -(-(number - 1) * depth // 16)


def first_upper_layer(depth: int) -> int:
    """The first upper layer of `depth` layers, corresponding to 11 of the paper's 1-16: ceil(10 * depth / 16)."""
    return first_layer_from(ELEVENTH, depth)


def open_atlas(path: str | os.PathLike[str]) -> "Atlas":
    """The atlas in a folder, or on the hub at the commit that its revision is now; of that, files are fetched when they
    are first read, and checked.

    Raises AtlasNotFound, AtlasUnfinished, AtlasTooNew or AtlasDamaged. Of an encoder alone reading values raises
    ModelUnsupported. A part (`mine --part I/N`) opens too, but has no
    values or neighbours: reading them raises AtlasUnfinished.

    Args:
        path: The folder, or hf://datasets/USER/NAME[@REVISION].
    """
    directory = settle(path)
    return Atlas(directory, *read_sealed(directory))


class Atlas(Tables):
    """One atlas: `atlas["L10.M222"]` is a memory, `atlas[10]` a layer, `atlas.table("triggers", layer=10)` a table.

    `len` and iteration are over its memories. It is also the path of its folder: for `os.fspath`, `str` and `/`.
    `manifest_hash` is the sha256 of the manifest as it was opened.
    """

    def __repr__(self) -> str:
        return f"<Atlas {self.path}: {self.range_text()}>"

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name

    def __len__(self) -> int:
        return sum(map(self.memories, self.layers))

    def __iter__(self) -> Iterator["Memory"]:
        return (memory for layer in self.layers for memory in self[layer])

    def __contains__(self, name: object) -> bool:
        with suppress(MemoryIdError):
            return bool(self[name])  # type: ignore[call-overload]
        return False

    def _ipython_key_completions_(self) -> list[str]:
        each = _COMPLETED // len(self.layers)
        return [str(memory.id) for layer in self.layers for memory in islice(self[layer], each)]

    def _repr_html_(self) -> str:
        model, corpus = self.manifest.model, self.manifest.corpus
        rows = [
            ("model", ", ".join((model.spec, model.family, model.block, model.activation))),
            ("text", f"{corpus.spec}, {corpus.counts['mined_tokens']:,} tokens"),
            ("memories", f"{len(self):,} in {self.range_text()}"),
            ("folder", str(self.path)),
        ]
        some = f"atlas[&quot;{self.name(self.layers[0], 0)}&quot;]"
        return f"<p>An atlas. <code>{some}</code> is a memory.</p>\n{Table((), rows).html()}"

    @property
    def reading(self) -> Reading:
        """How the mined model reads a text."""
        return self.manifest.model.reading

    @overload
    def __getitem__(self, key: "str | MemoryId | tuple[int, int]") -> "Memory": ...
    @overload
    def __getitem__(self, key: int) -> "AtlasLayer": ...
    @overload
    def __getitem__(self, key: slice) -> "tuple[AtlasLayer, ...]": ...
    def __getitem__(self, key: Any) -> Any:
        """A memory: `atlas["L3.M17"]`, `atlas["L3N17"]`, `atlas["3.17"]`, `atlas[3, 17]`; a layer: `atlas[3]`; the
        mined ones of some layers: `atlas[3:5]`. A number counts the memories of experts through: `atlas[3, 17]` may be
        L3.E0.M17.
        """
        if isinstance(key, MemoryId):
            return Memory(self, key)
        if isinstance(key, str):
            numbered = _NUMBERED.fullmatch(key)
            if numbered is None:
                return Memory(self, MemoryId.parse(key))
            key = int(numbered[1] or numbered[2]), int(numbered[3])
        try:
            if isinstance(key, slice):
                every = range(len(self.manifest.model.sizes.memories))
                return tuple(AtlasLayer(self, layer) for layer in every[key] if layer in self.layers)
            layer, *numbers = map(index, key if isinstance(key, tuple) else (key,))
            of = AtlasLayer(self, layer)
            (number,) = numbers or (None,)
        except (TypeError, ValueError):
            some = self.name(self.layers[0], 0)
            raise MemoryIdError(
                f"{key!r} is not the name of a memory; write atlas[{str(some)!r}], as text, or atlas[{some.layer}, 0]"
                f" by its number (atlas[{some.layer}] is a layer)"
            ) from None
        if number is None:
            return of
        if not 0 <= number < len(of):
            raise MemoryIdError(f"memory {number} is not in layer {layer} of {self.path}, which has 0-{len(of) - 1}")
        return Memory(self, self.name(layer, number))

    def triggers(
        self,
        memories: "str | MemoryId | Iterable[str | MemoryId | Memory] | None" = None,
        *,
        layer: int | None = None,
        k: int | None = 5,
        sign: int | None = None,
    ) -> pl.DataFrame:
        """The best triggers of some memories, in that order, positive ones first: `name`, `layer`, and the columns of
        `Memory.triggers`, `memory` the number. Raises MemoryIdError, OptionError.

        Args:
            memories: Memories, by name; None: all.
            layer: The layer, counted from 0, in place of memories.
            k: How many triggers of each memory and sign; None: all.
            sign: 1 or -1; None: both.
        """
        if memories is not None and layer is not None:
            raise OptionError(f"name memories, or one layer ({layer}), not both")
        if k is not None and k < 1:
            raise OptionError(f"k={k} asks for no trigger; take 1 or more, or None for all")
        wanted: dict[int, list[int] | None] = dict.fromkeys(self.layers if layer is None else (self[layer].number,))
        order: dict[str, None] = {}
        if memories is not None:
            given = [memories] if isinstance(memories, str | MemoryId) else memories
            ids = [each.id if isinstance(each, Memory) else self[each].id for each in given]
            order = dict.fromkeys(map(str, ids))
            wanted = {of: [self.number(id) for id in ids if id.layer == of] for of in {id.layer: None for id in ids}}
        frames = []
        for of, numbers in (wanted or {self.layers[0]: []}).items():
            rows = self.best_triggers(of, k, memories=numbers, sign=sign).drop("expert", strict=False)
            names = _strings("name", [str(self.name(of, number)) for number in rows["memory"]])
            frames.append(rows.select(names, pl.lit(of, pl.Int16).alias("layer"), pl.all()))
        rows = pl.concat(frames)
        if order:
            rows = pl.DataFrame({"name": list(order)}).join(rows, on="name", maintain_order="left_right")
        return with_texts(self, rows)

    @property
    def upper_layers(self) -> tuple[int, ...]:
        """The mined layers that correspond to the paper's layers 11-16 of 16."""
        return tuple(
            layer for layer in self.layers if layer >= first_upper_layer(len(self.manifest.model.sizes.memories))
        )

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
        sign: int | None = 1,
    ) -> pl.DataFrame:
        """The best triggers as stored.

        Args:
            layer: The layer, counted from 0.
            count: How many per memory and sign; None: all.
            memories: Numbers of memories; None: all.
            columns: Their names; None: all. Fewer are read faster.
            sign: 1 or -1; None: both.
        """
        needed = ("memory", "sign") if count is None else ("memory", "sign", "rank")
        read = None if columns is None else list(dict.fromkeys((*columns, *needed)))
        if memories is None:
            rows = self.table("triggers", layer=layer, columns=read)
        else:
            rows = self.rows_where("triggers", layer, column="memory", ids=memories, columns=read)
        rows = _of_sign(rows, sign)
        rows = rows if count is None else rows.filter(pl.col("rank") < count)
        return rows if columns is None else rows.select(columns)

    def each_layer(self, read: Callable[[int], T]) -> list[T]:
        """`read(layer)` of every layer, several at a time: checking and decoding files keeps several cores busy."""
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
            return list(pool.map(read, self.layers))

    def token_text(self, ids: Sequence[int | None]) -> list[str | None]:
        """The text of each of the tokens `ids` as in running text; None for None."""
        return self.vocabulary.each_text(ids)


class AtlasLayer:
    """One mined layer: `layer[17]` is a memory, `len` and iteration are over its memories."""

    def __init__(self, atlas: Atlas, number: int) -> None:
        self.number = number
        self._atlas, self._count = atlas, atlas.memories(number)

    def __repr__(self) -> str:
        return f"<Layer {self.number} of {self._atlas.path}: {self._atlas.numbering(self.number).range_text()}>"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator["Memory"]:
        return (Memory(self._atlas, self._atlas.name(self.number, number)) for number in range(self._count))

    def __getitem__(self, memory: int) -> "Memory":
        """The memory of this number, experts' memories counted through."""
        return self._atlas[self.number, memory]

    def table(self, name: str | None = None) -> pl.DataFrame:
        """A table's rows of this layer; without a name one row for each memory: its `name`, `fires` (the share of
        prefixes with a positive coefficient), `mean` and `max` coefficient, and, where there are values, `value_norm`
        and `top_text`, the token that its value promotes most.
        """
        atlas, layer = self._atlas, self.number
        if name is not None:
            return atlas.table(name, layer=layer)
        rows = atlas.table("activity", layer=layer).select(
            "memory", (pl.col("positive") / pl.col("prefixes")).alias("fires"), "mean", "max"
        )
        rows.insert_column(0, _strings("name", [str(atlas.name(layer, number)) for number in rows["memory"]]))
        if not atlas.has("values", layer=layer):
            return rows
        values = atlas.table("values", layer=layer, columns=["memory", "value_norm", "top_tokens"])
        tops = atlas.token_text([tokens[0] for tokens in values["top_tokens"]])
        return rows.join(values.drop("top_tokens").with_columns(_strings("top_text", tops)), on="memory")

    def chart(self) -> Any:
        """An altair.Chart of `table()`: each memory by how often it fires and by its largest coefficient."""
        import altair as alt

        rows = self.table()
        return (
            alt.Chart(alt.InlineData(values=rows.to_dicts()), title=f"Layer {self.number} of {self._atlas.path.name}")
            .mark_circle()
            .encode(
                x=alt.X("fires:Q", title="share of prefixes that fire it"),
                y=alt.Y("max:Q", title="largest coefficient"),
                tooltip=[alt.Tooltip(field=name) for name in rows.columns if name != "memory"],
            )
        )

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.table()._repr_html_()}"


class MemoryRows:
    """What mining found about some memories of one layer, by their `numbers`, ascending: a frame for each table."""

    named_by: tuple[str, ...] = ("expert", "memory")
    """The columns that tell the memories apart, as far as the atlas has them."""

    def __init__(self, atlas: Atlas, layer: int, numbers: Sequence[int]) -> None:
        self._atlas, self._layer, self._numbers = atlas, layer, list(numbers)

    def triggers(self, sign: int | None = 1) -> pl.DataFrame:
        """The triggers of one sign (+1 or -1; None: both), best first, possibly none.

        Adds `trigger_text` (the last token of the prefix), `next_text` (null at a sentence's end), `fold` (the rank of
        the first of its near-duplicates), `prefix` (the prefix's tokens as text) and `text` (the whole sentence as
        stored).
        """
        return with_texts(self._atlas, _of_sign(self._rows("triggers"), sign))

    def value(self) -> pl.DataFrame:
        """One row: the value vector over the vocabulary, with `top_texts`, `bottom_texts`, `target_text`; raises
        AtlasUnfinished in a part, which has no values yet.
        """
        rows = self._with_texts(self._with_texts(self._row_each("values"), "top"), "bottom")
        return rows.with_columns(_strings("target_text", self._atlas.token_text(rows["target"].to_list())))

    def activity(self) -> pl.DataFrame:
        """One row: how often and how strongly the memory fires, with the 35 `edges` of its histogram's 36 bins."""
        rows = self._row_each("activity")
        return rows.with_columns(pl.Series("edges", [list(HISTOGRAM_EDGES)] * len(rows), dtype=pl.List(pl.Float64)))

    def importance(self) -> pl.DataFrame:
        """One row: how much the model's predictions hang on the memory; none without validation prefixes. Raises
        AtlasUnfinished where that was not measured (`mnemoscope extend`).
        """
        return self._rows("importance")

    def neighbours(self) -> pl.DataFrame:
        """The memories with the most similar values, best first, with their `name` and their value's `top_text` (null
        in other layers of an atlas on the hub, each of which would be fetched for it).
        """
        rows = self._rows("neighbours")
        columns = [name for name in ("other_layer", "other_expert", "other_memory") if name in rows.columns]
        numberings = self._atlas.numberings
        others = [
            MemoryId(*place) if len(place) == 2 else numberings[place[0]].name_in(*place)
            for place in rows.select(columns).iter_rows()
        ]
        places = [(other.layer, self._atlas.number(other)) for other in others]
        near = {of for of, _ in places if of == self._layer or not self._atlas.foreign}
        asked = {layer: sorted({number for of, number in places if of == layer}) for layer in near}
        first = {layer: MemoryRows(self._atlas, layer, numbers).top_tokens() for layer, numbers in asked.items()}
        tops = [first[layer][number] if layer in near else None for layer, number in places]
        return rows.with_columns(
            _strings("name", [str(other) for other in others]), _strings("top_text", self._atlas.token_text(tops))
        )

    def patterns(self) -> pl.DataFrame:
        """What the triggers have in common; raises AtlasUnfinished where patterns were not made."""
        return self._made_later("patterns")

    def token_activations(self) -> pl.DataFrame:
        """The coefficients at the tokens of the best triggers' sentences: `sign`, `rank` (the trigger's), `texts` (of
        the tokens), `coefficients`. Raises AtlasUnfinished where they were not made (`mnemoscope extend`).
        """
        places = self._numbered_rows("triggers", columns=["memory", "sign", "rank", "sentence"])
        rows = self._numbered_rows("token_activations").join(
            places, on=["memory", "sign", "rank"], maintain_order="left"
        )
        rows = as_stored(rows, self._atlas.numberings, self._layer)
        stored = self._atlas.sentences(rows["sentence"].to_list(), columns=["sentence", "tokens"])
        tokens = {sentence: self._atlas.vocabulary.split_text(ids) for sentence, ids in stored.iter_rows()}
        if rows["coefficients"].list.len().to_list() != [len(tokens[one]) for one in rows["sentence"]]:
            raise AtlasDamaged(f"{self._atlas.path}: token_activations of layer {self._layer} do not fit its triggers")
        texts = pl.Series("texts", [tokens[one] for one in rows["sentence"]], dtype=pl.List(pl.String))
        products = pl.col("coefficients").cast(pl.List(pl.Float32)) * pl.col("scale")
        return self._select(rows, "sign", "rank", texts, products.alias("coefficients"))

    def random(self, sign: int | None = 1) -> pl.DataFrame:
        """Firings of one sign (1 or -1; None: both) drawn at random from the text, with the texts of `triggers`;
        `kept_firings` is how many were looked at. Raises AtlasUnfinished where they were not drawn (`mnemoscope
        extend`).
        """
        return with_texts(self._atlas, _of_sign(self._rows("random"), sign)).drop("fold")

    def labels(self) -> pl.DataFrame:
        """`sign`, `label`, `promotes` of each of its features: what its triggers share, and what its value promotes;
        raises AtlasUnfinished where patterns were not made.
        """
        return self._select(self._made_later("labels"), "sign", "label", "promotes")

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
        if self._atlas.has("key_readings", layer=self._layer) or not self._atlas.has("roles", layer=self._layer):
            rows = self._rows("key_readings")
        else:
            rows = self._rows("roles").with_columns(pl.lit("plain").alias("lens"))
            rows = rows.select(TABLES["key_readings"].columns_beside(rows.columns).names)
        return self._with_texts(rows, "key_top")

    def top_tokens(self) -> dict[int, int]:
        """The id of each value's first token, clear or not, by the memory's number."""
        rows = self._row_each("values", columns=["memory", "top_tokens"])
        return {number: tokens[0] for number, tokens in rows.iter_rows()}

    def _numbered_rows(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        return self._atlas.rows_where(name, self._layer, column="memory", ids=self._numbers, columns=columns)

    def _rows(self, name: str) -> pl.DataFrame:
        return as_stored(self._numbered_rows(name), self._atlas.numberings, self._layer)

    def _made_later(self, name: str) -> pl.DataFrame:
        rows = self._atlas.rows_where(name, column="layer", ids=[self._layer])
        return as_stored(rows.filter(pl.col("memory").is_in(self._numbers)), self._atlas.numberings, None)

    def _row_each(self, name: str, *, columns: list[str] | None = None) -> pl.DataFrame:
        rows = self._numbered_rows(name, columns=columns)
        counts = Counter(rows["memory"].to_list())
        for number in self._numbers:
            if counts[number] != 1:
                one = self._atlas.name(self._layer, number)
                raise AtlasDamaged(f"{self._atlas.path}: table {name} has {counts[number]} rows for {one}, not one")
        return as_stored(rows, self._atlas.numberings, self._layer)

    def _select(self, rows: pl.DataFrame, *columns: Any) -> pl.DataFrame:
        return rows.select(cs.by_name(*self.named_by, require_all=False), *columns)

    def _with_texts(self, rows: pl.DataFrame, name: str) -> pl.DataFrame:
        texts = [self._atlas.token_text(tokens) for tokens in rows[f"{name}_tokens"].to_list()]
        return rows.with_columns(pl.Series(f"{name}_texts", texts, dtype=pl.List(pl.String)))


class Memory(MemoryRows):
    """The pair (key, value) that `id` names, with what mining found about it."""

    named_by = ()

    def __init__(self, atlas: Atlas, id: MemoryId) -> None:
        super().__init__(atlas, id.layer, [atlas.number(id)])
        self.id = id

    def __repr__(self) -> str:
        return f"<Memory {self.id} of {self._atlas.path}>"

    def _repr_html_(self) -> str:
        return page_html("memory_html", self._atlas, self.id)

    def top_token(self) -> int:
        """The id of the value's first token, clear or not."""
        return next(iter(self.top_tokens().values()))


def _of_sign(rows: pl.DataFrame, sign: int | None) -> pl.DataFrame:
    if sign not in (1, -1, None):
        raise OptionError(f"sign {sign!r} is not 1, -1 or None (both)")
    return rows if sign is None else rows.filter(pl.col("sign") == sign)


def with_texts(atlas: Atlas, rows: pl.DataFrame, *, sentences: str = "text") -> pl.DataFrame:
    """Rows of triggers or random firings with the columns of `Memory.triggers`; of their sentences the `tokens` in
    place of the `text`, if these are wanted, which are read faster.
    """
    stored = atlas.sentences(rows["sentence"].to_list(), columns=list({"sentence": 0, "tokens": 0, sentences: 0}))
    prefixes = atlas.prefixes(rows.select("sentence", "position").rows(), stored=stored)
    read = prefixes
    if not atlas.reading.causal:
        whole = dict(stored.select("sentence", "tokens").iter_rows())
        read = [whole[sentence] for sentence in rows["sentence"]]
    features = rows.select(cs.by_name("layer", "expert", "memory", "sign", require_all=False)).rows()
    rows = rows.with_columns(
        _strings("trigger_text", atlas.token_text(rows["token"].to_list())),
        _strings("next_text", atlas.token_text(rows["next_token"].to_list())),
        pl.Series("fold", fold_triggers(features, rows["rank"].to_list(), read), pl.Int16),
        _strings("prefix", [atlas.vocabulary.text(prefix) for prefix in prefixes]),
    )
    return rows.join(stored.select("sentence", sentences), on="sentence", how="left", maintain_order="left")


def _strings(name: str, values: list[Any]) -> pl.Series:
    return pl.Series(name, values, dtype=pl.String)
