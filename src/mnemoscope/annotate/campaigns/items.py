"""What is judged: a campaign's items, sampled from an atlas by a seed, and the prefixes that each of them shows.

Items are keys, controls made of random prefixes, compositions, and memories that somebody chose. The same atlas, seed
and sizes give the same items. A key's prefixes are its 25 best triggers, those with the same prefix once. Nothing that
an item shows says which of them it is. Reads the atlas and changes nothing in it.
"""

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import polars as pl
from sqlalchemy import Connection, select

from mnemoscope.annotate.judgements.tables import campaigns, items
from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import recorded_hashes
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.errors import AnnotationError, AtlasDamaged
from mnemoscope.foundation.cache import Cache
from mnemoscope.foundation.formatting import before_token

Row = dict[str, Any]
"""A row of table `items`."""

CASES = "analyses/refinement_events.cases.parquet"
"""Where the question refinement_events lists the last layer's compositions."""
_TEXTS = ("prefix_text", "residual_text", "ffn_text", "output_text")
_TRIES = 40
"""Background prefixes that are drawn for one control, as a multiple of those that it shows."""
CACHE_SIZE = 1000
"""Items whose prefixes are remembered."""


@dataclass(frozen=True)
class Item:
    """One thing to judge, before it has a code: kind, layer, memory (a control's number, a case's prefix), content."""

    kind: str
    layer: int
    memory: int
    content: Any

    def as_row(self, uid: str) -> Row:
        """The row of table `items`; the code tells nothing without the campaign's `uid`."""
        content = json.dumps(self.content)
        named = f"{uid}:{self.kind}:{self.layer}:{self.memory}:{content}"
        return asdict(self) | {"code": hashlib.sha256(named.encode()).hexdigest()[:20], "content": content}


@dataclass(frozen=True)
class ShownPrefix:
    """A prefix to look at: its text before the trigger token, and that token's own text."""

    number: int
    before: str
    token: str


@dataclass(frozen=True)
class ItemPrefixes:
    """The prefixes of an item, and of each the rank under which its marks are stored."""

    prefixes: tuple[ShownPrefix, ...]
    ranks: tuple[int, ...]


def sample(
    atlas: Atlas, *, keys_per_layer: int, controls: int | None, cases: int, seed: int
) -> tuple[dict[str, int], list[Item]]:
    """The sizes of a campaign as they are stored, and its items; raises AnnotationError for sizes that cannot be."""
    asked = {
        "keys per layer": (keys_per_layer, 1000), "controls": (controls, 10_000), "cases": (cases, 100),
        "the seed": (seed, 2**31 - 1),
    }  # fmt: skip
    for what, (value, most) in asked.items():
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            raise AnnotationError(f"{what} is {value!r}; give a number from 0 to {most:,}")
    keys = sample_keys(atlas, per_layer=keys_per_layer, seed=seed)
    count = (max(5, math.ceil(len(keys) / 5)) if keys else 0) if controls is None else controls
    found = [*keys, *sample_controls(atlas, count=count, keys=keys, seed=seed)]
    found += sample_cases(atlas, count=cases, seed=seed)
    if not found:
        raise AnnotationError(f"{atlas.path} gives nothing to judge: no memory fires, or no key was asked for")
    return {"seed": seed, "keys_per_layer": keys_per_layer, "controls": count, "cases": cases}, found


def store_campaign(connection: Connection, sampled: Sequence[Item], facts: Mapping[str, Any]) -> None:
    """Stores a campaign and its items, if there is none yet."""
    if connection.execute(select(campaigns.c.id)).first() is None:
        connection.execute(campaigns.insert().values(id=1, **facts))
        connection.execute(items.insert(), [item.as_row(str(facts["uid"])) for item in sampled])


def store_chosen(connection: Connection, layer: int, memory: int, code: str | None = None) -> str:
    """Stores a memory that somebody chose, outside the campaign; returns its code: a new one if none is given."""
    row = Item("chosen", layer, memory, None).as_row(secrets.token_hex(16))
    connection.execute(items.insert().values(row | {"code": code or row["code"]}))
    return code or str(row["code"])


def read_item(connection: Connection, code: str) -> Row:
    """The item with this code; raises AnnotationError."""
    row = connection.execute(select(items).where(items.c.code == str(code))).mappings().first()
    if row is None:
        raise AnnotationError(f"there is no item {str(code)[:40]!r} to judge; go back to the list")
    return dict(row)


def find_item(connection: Connection, kind: str, layer: int, memory: int) -> Row | None:
    """The item of this kind and place, if there is one."""
    here = (items.c.kind == kind, items.c.layer == layer, items.c.memory == memory)
    row = connection.execute(select(items).where(*here)).mappings().first()
    return None if row is None else dict(row)


def sample_keys(atlas: Atlas, *, per_layer: int, seed: int) -> list[Item]:
    """In every layer `per_layer` memories with a positive trigger, or all where there are fewer."""
    found = []
    for layer in atlas.layers:
        firing = atlas.best_triggers(layer, count=None, columns=["memory"])["memory"].unique().sort().to_numpy()
        random = np.random.default_rng((seed, 1, layer))
        chosen = random.choice(firing, min(per_layer, firing.size), replace=False)
        found += [Item("key", layer, int(memory), None) for memory in sorted(chosen)]
    return found


def sample_controls(atlas: Atlas, *, count: int, keys: list[Item], seed: int) -> list[Item]:
    """So many controls: each shows different random prefixes, as many as one of the keys shows (so 25 as a rule)."""
    if not count:
        return []
    rows = atlas.table("background").select("sentence", "position").unique(maintain_order=True).rows()
    sizes: list[int] = []
    for layer in sorted({key.layer for key in keys}):
        triggers = atlas.best_triggers(layer, memories=[key.memory for key in keys if key.layer == layer])
        groups = triggers.group_by("memory").agg(pl.col("prefix_group").n_unique()).sort("memory")
        sizes += groups["prefix_group"].to_list()
    sizes = sizes or [BEST_TRIGGERS]
    found = []
    for number in range(count):
        random = np.random.default_rng((seed, 2, number))
        size = sizes[int(random.integers(len(sizes)))]
        order = random.permutation(len(rows))[: _TRIES * size]
        places = _different_places(atlas, [rows[place] for place in order], size)
        found.append(Item("control", atlas.layers[number % len(atlas.layers)], number, places))
    return found


def sample_cases(atlas: Atlas, *, count: int, seed: int) -> list[Item]:
    """So many of the compositions that refinement_events lists, or all where there are fewer."""
    path = atlas.path / CASES
    if not count or CASES not in recorded_hashes(atlas, "analyses") or not path.is_file():
        return []
    try:
        rows = pl.read_parquet(path, glob=False).select("prefix", "layer", *_TEXTS)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        remedy = f"make it with `mnemoscope analyze {atlas.path} refinement_events`"
        raise AtlasDamaged(f"{path} cannot be read ({reason}); {remedy}") from error
    random = np.random.default_rng((seed, 3))
    chosen = np.sort(random.permutation(rows.height)[:count])
    return [
        Item("case", row["layer"], row["prefix"], {name.removesuffix("_text"): row[name] for name in _TEXTS})
        for row in rows[chosen.tolist()].iter_rows(named=True)
    ]


def _different_places(atlas: Atlas, places: list[tuple[int, int]], size: int) -> list[list[int]]:
    """The first `size` places whose prefixes are different, from different sentences."""
    prefixes: set[tuple[int, ...]] = set()
    found: dict[int, int] = {}
    for (sentence, position), prefix in zip(places, atlas.prefixes(places), strict=True):
        if tuple(prefix) not in prefixes and sentence not in found and len(found) < size:
            prefixes.add(tuple(prefix))
            found[sentence] = position
    return [list(place) for place in found.items()]


@final
class ItemReader:
    """What the items of one atlas show; remembers the latest ones."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._cache = Cache(CACHE_SIZE)

    def read(self, item: Row) -> ItemPrefixes:
        """What a row of table `items` shows; raises AtlasDamaged."""
        if item["kind"] == "control":
            return self._cache.get(item["code"], lambda: self._show(json.loads(item["content"])))
        return self._cache.get(item["code"], lambda: self.read_memory(item["layer"], item["memory"]))

    def read_memory(self, layer: int, memory: int) -> ItemPrefixes:
        """What a memory shows; raises AtlasDamaged."""
        rows = self._atlas.best_triggers(layer, memories=[memory]).sort("rank")
        rows = rows.unique("prefix_group", keep="first", maintain_order=True)
        return self._show(rows.select("sentence", "position").rows(), rows["rank"].to_list())

    def _show(self, places: Sequence[tuple[int, int]], ranks: Sequence[int] | None = None) -> ItemPrefixes:
        words = self._atlas.vocabulary
        found = []
        for number, tokens in enumerate(self._atlas.prefixes(places)):
            text, token = words.text(tokens), words.texts[tokens[-1]] or ""
            found.append(ShownPrefix(number, before_token(text, token), token))
        return ItemPrefixes(tuple(found), tuple(range(len(found)) if ranks is None else ranks))
