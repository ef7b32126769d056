"""What an item shows: the prefixes of a key, of a control, of a chosen memory; read from the atlas and remembered.

A key's prefixes are its 25 best triggers, those with the same prefix once. Nothing here says which of them an item is.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.visible import before_token
from mnemoscope.cache import Cache
from mnemoscope.campaigns.records import Prefix
from mnemoscope.errors import AtlasDamaged
from mnemoscope.patterns.coverage import TOP

_MOST = 1000


@dataclass(frozen=True)
class ItemPrefixes:
    """The prefixes of an item, and of each the rank under which its marks are stored."""

    prefixes: tuple[Prefix, ...]
    ranks: tuple[int, ...]


class ItemReader:
    """What the items of one atlas show."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._known = Cache(_MOST)

    def read(self, item: Mapping[str, Any]) -> ItemPrefixes:
        """What a row of table `items` shows; raises AtlasDamaged."""

        def make() -> ItemPrefixes:
            return self._control(item) if item["kind"] == "control" else self.read_memory(item["layer"], item["memory"])

        return self._known.get(item["code"], make)

    def read_memory(self, layer: int, memory: int) -> ItemPrefixes:
        """What a memory shows; raises AtlasDamaged."""
        rows = self._atlas.tables.having("triggers", layer, column="memory", ids=[memory])
        rows = rows.filter((pl.col("sign") == 1) & (pl.col("rank") < TOP)).sort("rank")
        rows = rows.unique("prefix_group", keep="first", maintain_order=True)
        return ItemPrefixes(self._prefixes(rows.select("sentence", "position").rows()), tuple(rows["rank"].to_list()))

    def _control(self, item: Mapping[str, Any]) -> ItemPrefixes:
        places = [(int(sentence), int(position)) for sentence, position in json.loads(item["content"])]
        return ItemPrefixes(self._prefixes(places), tuple(range(len(places))))

    def _prefixes(self, places: Sequence[tuple[int, int]]) -> tuple[Prefix, ...]:
        if not places:
            return ()
        stored = self._atlas.sentences([sentence for sentence, _ in places], columns=["sentence", "tokens"])
        tokens = dict(zip(stored["sentence"].to_list(), stored["tokens"].to_list(), strict=True))
        found = []
        for number, (sentence, position) in enumerate(places):
            ids = tokens[sentence][: position + 1]
            if len(ids) <= position:
                raise AtlasDamaged(f"{self._atlas.path}: position {position} of sentence {sentence} is not there")
            token = self._atlas.token_text(ids[-1:])[0] or ""
            whole = self._atlas.token_bytes(ids).decode("utf-8", "replace")
            found.append(Prefix(number, before_token(whole, token), token))
        return tuple(found)
