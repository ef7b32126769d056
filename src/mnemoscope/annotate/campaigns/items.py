"""Samples a campaign's items from an atlas, and reads the prefixes that each item shows.

The same atlas, seed and sizes give the same items. A key shows its 25 best triggers, equal prefixes once; a control
shows random prefixes. Nothing shown identifies the item.
"""

import hashlib
import json
import math
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.annotate.judgements.tables import insert
from mnemoscope.atlas import Atlas
from mnemoscope.atlas.manifest import ANALYSES
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.errors import AnnotationError, AtlasDamaged
from mnemoscope.foundation.formatting import before_token

Row = dict[str, Any]

CASES = "analyses/refinement_events.cases.parquet"
_TEXTS = ("prefix_text", "residual_text", "ffn_text", "output_text")
_DRAWS_PER_PREFIX = 40
"""Background prefixes drawn for each prefix of a control."""


@dataclass(frozen=True)
class Item:
    """`memory` is a control's number or a case's prefix."""

    kind: str
    layer: int
    memory: int
    content: Any

    def as_row(self, uid: str) -> Row:
        """The row in `items`. Without the campaign's secret `uid`, the code reveals nothing."""
        content = json.dumps(self.content)
        named = f"{uid}:{self.kind}:{self.layer}:{self.memory}:{content}"
        return asdict(self) | {"code": hashlib.sha256(named.encode()).hexdigest()[:20], "content": content}


@dataclass(frozen=True)
class ShownPrefix:
    number: int
    before: str
    token: str


@dataclass(frozen=True)
class ShownSentence(ShownPrefix):
    """Of a model that reads sentences whole: what stands behind the token, too."""

    after: str


ShownPrefixes = tuple[tuple[ShownPrefix, ...], tuple[int, ...]]
"""The prefixes that an item shows, and the ranks of their triggers."""


def sample(
    atlas: Atlas, *, keys_per_layer: int, controls: int | None, cases: int, seed: int, keys_in_all: int | None = None
) -> tuple[dict[str, int], list[Item]]:
    """The sizes of a campaign as stored, and its items."""
    limits = {
        "keys per layer": (keys_per_layer, 1000),
        "controls": (controls, 10_000),
        "cases": (cases, 100),
        "the seed": (seed, 2**31 - 1),
    }
    for what, (value, most) in limits.items():
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            raise AnnotationError(f"{what} is {value!r}; give a number from 0 to {most:,}")
    keys = sample_keys(atlas, per_layer=keys_per_layer, seed=seed)
    if keys_in_all is not None:
        places = np.random.default_rng((seed, 4)).permutation(len(keys))[:keys_in_all]
        keys = [keys[place] for place in sorted(places.tolist())]
    count = (max(5, math.ceil(len(keys) / 5)) if keys else 0) if controls is None else controls
    drawn = [*keys, *sample_controls(atlas, count=count, keys=keys, seed=seed)]
    drawn += sample_cases(atlas, count=cases, seed=seed)
    if not drawn:
        raise AnnotationError(
            f"{atlas.path} gives nothing to judge: no memory fires, or no key was asked for; mine more text"
            " or ask for keys"
        )
    return {"seed": seed, "keys_per_layer": keys_per_layer, "controls": count, "cases": cases}, drawn


def store_campaign(connection: sqlite3.Connection, sampled: Sequence[Item], facts: Mapping[str, Any]) -> None:
    if connection.execute("SELECT id FROM campaigns").fetchone() is None:
        insert(connection, "campaigns", {"id": 1, **facts})
        for item in sampled:
            insert(connection, "items", item.as_row(str(facts["uid"])))


def store_chosen(
    connection: sqlite3.Connection, layer: int, memory: int, code: str | None = None, *, kind: str = "chosen"
) -> str:
    """Stores an item of no campaign; returns its code, a random one by default."""
    row = Item(kind, layer, memory, None).as_row(secrets.token_hex(16))
    insert(connection, "items", row | {"code": code or row["code"]})
    return code or str(row["code"])


def read_item(connection: sqlite3.Connection, code: str) -> Row:
    row = connection.execute("SELECT * FROM items WHERE code = ? AND kind NOT LIKE 'sheet%'", (str(code),)).fetchone()
    if row is None:
        raise AnnotationError(f"there is no item {str(code)[:40]!r} to judge; go back to the list")
    return dict(row)


def find_item(connection: sqlite3.Connection, kind: str, layer: int, memory: int) -> Row | None:
    statement = "SELECT * FROM items WHERE kind = ? AND layer = ? AND memory = ?"
    row = connection.execute(statement, (kind, layer, memory)).fetchone()
    return None if row is None else dict(row)


def sample_keys(atlas: Atlas, *, per_layer: int, seed: int) -> list[Item]:
    drawn = []
    for layer in atlas.layers:
        firing = atlas.best_triggers(layer, count=None, columns=["memory"])["memory"].unique().sort().to_numpy()
        random = np.random.default_rng((seed, 1, layer))
        memories = random.choice(firing, min(per_layer, firing.size), replace=False)
        drawn += [Item("key", layer, int(memory), None) for memory in sorted(memories)]
    return drawn


def sample_controls(atlas: Atlas, *, count: int, keys: list[Item], seed: int) -> list[Item]:
    """Each shows distinct random prefixes, as many as one of the keys (usually 25)."""
    if not count:
        return []
    rows = atlas.table("background").select("sentence", "position").unique(maintain_order=True).rows()
    sizes: list[int] = []
    for layer in sorted({key.layer for key in keys}):
        triggers = atlas.best_triggers(layer, memories=[key.memory for key in keys if key.layer == layer])
        groups = triggers.group_by("memory").agg(pl.col("prefix_group").n_unique()).sort("memory")
        sizes += groups["prefix_group"].to_list()
    sizes = sizes or [BEST_TRIGGERS]
    controls = []
    for number in range(count):
        random = np.random.default_rng((seed, 2, number))
        size = sizes[int(random.integers(len(sizes)))]
        order = random.permutation(len(rows))[: _DRAWS_PER_PREFIX * size]
        places = _different_places(atlas, [rows[place] for place in order], size)
        controls.append(Item("control", atlas.layers[number % len(atlas.layers)], number, places))
    return controls


def sample_cases(atlas: Atlas, *, count: int, seed: int) -> list[Item]:
    data = atlas.read_listed(CASES, atlas.made_later(ANALYSES)) if count else None
    if data is None:
        return []
    try:
        rows = pl.read_parquet(data).select("prefix", "layer", *_TEXTS)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        remedy = f"make it with `mnemoscope analyze {atlas.path} refinement_events`"
        raise AtlasDamaged(f"{atlas.local(CASES)} cannot be read ({reason}); {remedy}") from error
    places = np.sort(np.random.default_rng((seed, 3)).permutation(rows.height)[:count])
    return [
        Item("case", row["layer"], row["prefix"], {name.removesuffix("_text"): row[name] for name in _TEXTS})
        for row in rows[places.tolist()].iter_rows(named=True)
    ]


def _different_places(atlas: Atlas, places: list[tuple[int, int]], size: int) -> list[list[int]]:
    prefixes: set[tuple[int, ...]] = set()
    by_sentence: dict[int, int] = {}
    for (sentence, position), prefix in zip(places, atlas.prefixes(places), strict=True):
        if tuple(prefix) not in prefixes and sentence not in by_sentence and len(by_sentence) < size:
            prefixes.add(tuple(prefix))
            by_sentence[sentence] = position
    return [list(place) for place in by_sentence.items()]


def best_ranks(atlas: Atlas, layer: int, memory: int) -> set[int]:
    return set(atlas.best_triggers(layer, memories=[memory], columns=["rank"])["rank"].to_list())


def read_prefixes(atlas: Atlas, item: Row) -> ShownPrefixes:
    if item["kind"] == "control":
        places = json.loads(item["content"])
        ranks = list(range(len(places)))
    else:
        rows = atlas.best_triggers(item["layer"], memories=[item["memory"]]).sort("rank")
        rows = rows.unique("prefix_group", keep="first", maintain_order=True)
        places, ranks = rows.select("sentence", "position").rows(), rows["rank"].to_list()
    words, shown = atlas.vocabulary, list[ShownPrefix]()
    stored = atlas.sentences([sentence for sentence, _ in places], columns=["sentence", "tokens"])
    sentences = dict(stored.iter_rows())
    for number, tokens in enumerate(atlas.prefixes(places, stored=stored)):
        text, token = words.text(tokens), words.texts[tokens[-1]] or ""
        one = number, before_token(text, token), token
        behind = sentences[places[number][0]][len(tokens) :]
        shown.append(ShownPrefix(*one) if atlas.reading.causal else ShownSentence(*one, words.text(behind)))
    return tuple(shown), tuple(ranks)
