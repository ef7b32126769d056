"""One state of an atlas's folder, with caches of pages and of the tables that many pages need.

A finished atlas never changes, but another may be mined in its place, and answers and patterns can be computed again:
each such state is an edition with its own caches. Results of the mined tables only, the large part, pass to the next
edition if only answers or patterns are new.
"""

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import FEATURE_COLUMNS, IN_AND_OUT, in_and_out_columns, promoted_tokens
from mnemoscope.atlas.files import manifests_of
from mnemoscope.atlas.manifest import ANALYSES
from mnemoscope.atlas.memory_document import MemoryDocument
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasBusy, AtlasDamaged
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.memory_names import MemoryId

PAGES = 64 << 20
"""Bytes of recent pages and views cached per edition: about a thousand pages of memories."""
_SPAN = 1 << 24
"""More than the memories of any layer, and than the positions of any sentence."""

Data = dict[str, Any]
"""An object of JSON: the data of a page, or a part of them."""
Peaks = tuple[np.ndarray, np.ndarray]
"""The highest and the lowest coefficient `[memory]` of every memory of a layer."""
T = TypeVar("T")


@dataclass(frozen=True)
class Edition:
    """One state of an atlas; `manifests` identify it. `pages` caches pages and views, `tables` large objects, `mined`
    those that come from the mined tables only.
    """

    atlas: Atlas
    manifests: tuple[str, ...] = ()
    pages: Cache = field(default_factory=lambda: Cache(PAGES, weigh=_bytes_of))
    tables: Cache = field(default_factory=Cache)
    mined: Cache = field(default_factory=Cache)
    published: Callable[[MemoryId], list[Data]] = lambda _: []
    """The judgements of a memory that every page may show; they may change within one edition."""

    @property
    def state(self) -> str:
        return "-".join(hash[:16] for hash in (self.atlas.manifest_hash, *self.manifests[1:]))

    @property
    def index_source(self) -> str:
        """The hashes of what the search index is made from."""

        def read() -> str:
            patterns = self.atlas.made_later(ANALYSES).get(TABLES["patterns"].path(), {})
            return f"{self.atlas.manifest_hash} {patterns.get('sha256')}"

        return self.read_current("index_source", read)

    def is_current(self) -> bool:
        """Always true without manifests."""
        return not self.manifests or manifests_of(self.atlas.path) == self.manifests

    def check_current(self) -> None:
        if not self.is_current():
            raise AtlasBusy(f"{self.atlas.path} changed while it was being read; try again in a moment")

    def read_current(self, key: Hashable, read: Callable[[], T]) -> T:
        """The cached result of `read` on answers or patterns."""

        def read_and_check() -> T:
            value = read()
            self.check_current()
            return value

        return self.tables.get(key, read_and_check)

    @property
    def has_patterns(self) -> bool:
        return self.read_current("has patterns", lambda: self.atlas.has("patterns"))

    def labels(self, layer: int) -> pl.DataFrame:
        """memory, sign, label of every feature of the layer; no rows in an atlas without labels."""

        def make() -> dict[int, pl.DataFrame]:
            if not self.atlas.has("labels"):
                return {}
            table = self.atlas.table("labels", columns=["layer", "memory", "sign", "label"])
            return {int(of[0]): rows for of, rows in table.partition_by("layer", as_dict=True).items()}

        empty = pl.DataFrame(schema={"memory": pl.Int32, "sign": pl.Int8, "label": pl.String})
        return self.read_current("labels", make).get(layer, empty)

    def label(self, memory: MemoryId, sign: int = 1) -> str | None:
        feature = (pl.col("memory") == self.atlas.number(memory)) & (pl.col("sign") == sign)
        return next(iter(self.labels(memory.layer).filter(feature)["label"]), None)

    def table(self, name: str, layer: int, columns: tuple[str, ...] | None = None) -> pl.DataFrame:
        """The table of a layer, sorted by memory; fewer `columns`, memory among them, are read faster."""
        return self.mined.get(
            (name, layer, columns), lambda: self.atlas.table(name, layer=layer, columns=columns).sort("memory")
        )

    def row(self, name: str, memory: MemoryId, columns: tuple[str, ...] | None = None) -> Data:
        rows, number = self.table(name, memory.layer, columns), self.atlas.number(memory)
        entry = rows.row(number, named=True) if number < rows.height else None
        if entry is None or entry["memory"] != number:
            where = f"each memory of layer {memory.layer}"
            raise AtlasDamaged(f"{self.atlas.path}: table {name} does not have one row for {where}")
        return entry

    def document(self, memory: MemoryId) -> MemoryDocument:
        """All that the atlas says of a memory."""
        id = self.atlas[memory].id
        value = None if self.atlas.manifest.keys_only else [self.row("values", id)]
        read = {"value": value, "activity": [self.row("activity", id)]}
        return MemoryDocument(self.atlas, id, patterns=self.patterns(id), **read)

    def in_and_out(self, layer: int) -> pl.DataFrame:
        """What each memory of a layer does to what it reads; no rows in an atlas without the table `roles`."""
        rows = pl.DataFrame(schema={"memory": pl.Int32, **dict.fromkeys(IN_AND_OUT, pl.Float32)})
        if self.atlas.has("roles", layer=layer):
            rows = self.table("roles", layer, ("memory", *IN_AND_OUT))
        return rows.with_columns(in_and_out_columns())

    def promoted_tokens(self, memory: MemoryId, sign: int = 1) -> Sequence[int]:
        return promoted_tokens(self.tokens_of(memory), sign)

    def tokens_of(self, memory: MemoryId) -> Data:
        """Of its row of `values`, what `promoted_tokens` reads."""
        columns = ("memory", "top_tokens", "bottom_tokens", *FEATURE_COLUMNS)
        return dict.fromkeys(columns) if self.atlas.manifest.keys_only else self.row("values", memory, columns)

    def peaks(self, layer: int) -> Peaks | None:
        """None for a layer that was not mined."""
        if layer not in self.atlas.layers:
            return None
        table = self.table("activity", layer, ("memory", "max", "min"))
        return table["max"].cast(pl.Float64).to_numpy(), table["min"].cast(pl.Float64).to_numpy()

    def patterns(self, memory: MemoryId) -> list[Data] | None:
        if not self.has_patterns:
            return None

        def make() -> pl.DataFrame:
            return self.atlas.rows_where("patterns", column="layer", ids=[memory.layer]).sort("memory", "pattern")

        rows = self.read_current(("patterns", memory.layer), make)
        return rows.filter(pl.col("memory") == self.atlas.number(memory)).to_dicts()

    def sharing(self, prefixes: Sequence[tuple[int, int]], most: int) -> list[tuple[MemoryId, int]]:
        """The memories with the most of these prefixes (sentence, position) as positive triggers, and how many."""
        keys = np.array([sentence * _SPAN + position for sentence, position in prefixes], dtype=np.int64)
        places, memories = self.mined.get("places", self._places)
        ends = zip(np.searchsorted(places, keys, "left"), np.searchsorted(places, keys, "right"), strict=True)
        pieces = [memories[first:last] for first, last in ends] or [memories[:0]]
        names, counts = np.unique(np.concatenate(pieces), return_counts=True)
        best = np.argsort(-counts, kind="stable")[:most]
        pairs = zip(names[best].tolist(), counts[best].tolist(), strict=True)
        return [(self.atlas.name(name // _SPAN, name % _SPAN), count) for name, count in pairs]

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The positive triggers of all layers, sorted: sentence and position as one number, the memory as another."""
        columns = ["sentence", "position", "memory"]
        pieces = [
            self.atlas.best_triggers(layer, None, columns=columns).select(
                place=pl.col("sentence").cast(pl.Int64) * _SPAN + pl.col("position"),
                memory=layer * _SPAN + pl.col("memory").cast(pl.Int64),
            )
            for layer in self.atlas.layers
        ]
        rows = pl.concat(pieces).sort("place")
        return rows["place"].to_numpy(), rows["memory"].to_numpy()


def _bytes_of(kept: object) -> int:
    if isinstance(kept, pl.DataFrame):
        return int(kept.estimated_size())
    return sum(map(_bytes_of, kept)) if isinstance(kept, list | tuple) else sys.getsizeof(kept)
