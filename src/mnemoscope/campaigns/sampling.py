"""What a campaign asks about, drawn from an atlas by a seed: keys, controls made of random prefixes, compositions.

The same atlas, seed and sizes give the same items. Reads the atlas and changes nothing in it.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from sqlalchemy import Connection, select

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.side import covered
from mnemoscope.errors import AnnotationError, AtlasDamaged
from mnemoscope.judgements.tables import campaigns, items
from mnemoscope.patterns.coverage import TOP

CASES = "analyses/refinement_events.cases.parquet"
"""Where the question refinement_events lists the last layer's compositions."""
_TEXTS = ("prefix_text", "residual_text", "ffn_text", "output_text")
_TRIES = 40
"""Background prefixes that are drawn for one control, as a multiple of those that it shows."""


@dataclass(frozen=True)
class Item:
    """One thing to judge, before it has a code: kind, layer, memory (a control's number, a case's prefix), content."""

    kind: str
    layer: int
    memory: int
    content: Any

    def as_row(self, uid: str) -> dict[str, Any]:
        """The row of table `items`; the code tells nothing without the campaign's `uid`."""
        content = json.dumps(self.content)
        named = f"{uid}:{self.kind}:{self.layer}:{self.memory}:{content}"
        return {
            "code": hashlib.sha256(named.encode()).hexdigest()[:20],
            "kind": self.kind,
            "layer": self.layer,
            "memory": self.memory,
            "content": content,
        }


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
    count = usual_controls(len(keys)) if controls is None else controls
    others = [
        *sample_controls(atlas, count=count, keys=keys, seed=seed),
        *sample_cases(atlas, count=cases, seed=seed),
    ]
    if not keys and not others:
        raise AnnotationError(f"{atlas.path} gives nothing to judge: no memory fires, or no key was asked for")
    return {"seed": seed, "keys_per_layer": keys_per_layer, "controls": count, "cases": cases}, keys + others


def store_campaign(connection: Connection, sampled: Sequence[Item], facts: Mapping[str, Any]) -> None:
    """Stores a campaign and its items, if there is none yet."""
    if connection.execute(select(campaigns.c.id)).first() is None:
        connection.execute(campaigns.insert().values(id=1, **facts))
        connection.execute(items.insert(), [item.as_row(str(facts["uid"])) for item in sampled])


def sample_keys(atlas: Atlas, *, per_layer: int, seed: int) -> list[Item]:
    """In every layer `per_layer` memories with a positive trigger, or all where there are fewer."""
    found = []
    for layer in atlas.layers:
        rows = atlas.table("triggers", layer=layer)
        firing = rows.filter(pl.col("sign") == 1)["memory"].unique().sort().to_numpy()
        random = np.random.default_rng((seed, 1, layer))
        chosen = random.choice(firing, min(per_layer, firing.size), replace=False)
        found += [Item("key", layer, int(memory), None) for memory in sorted(chosen)]
    return found


def usual_controls(keys: int) -> int:
    """The usual number of controls: a fifth of the keys, at least 5."""
    return max(5, math.ceil(keys / 5)) if keys else 0


def sample_controls(atlas: Atlas, *, count: int, keys: list[Item], seed: int) -> list[Item]:
    """So many controls: each shows different random prefixes, as many as one of the keys shows (so 25 as a rule)."""
    if not count:
        return []
    rows = atlas.table("background").select("sentence", "position").unique(maintain_order=True).rows()
    sizes = _count_prefixes(atlas, keys) or [TOP]
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
    rows = read_cases(atlas)
    if rows is None or not count:
        return []
    random = np.random.default_rng((seed, 3))
    chosen = np.sort(random.permutation(rows.height)[:count])
    items = []
    for row in rows[chosen.tolist()].iter_rows(named=True):
        content = {name.removesuffix("_text"): row[name] for name in _TEXTS}
        items.append(Item("case", int(row["layer"]), int(row["prefix"]), content))
    return items


def read_cases(atlas: Atlas) -> pl.DataFrame | None:
    """The compositions that refinement_events lists, or None where it has not been asked of this atlas."""
    if CASES not in covered(atlas, "analyses") or not (atlas.path / CASES).is_file():
        return None
    try:
        rows = pl.read_parquet(atlas.path / CASES)
        return rows.select("prefix", "layer", *_TEXTS)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise AtlasDamaged(
            f"{atlas.path / CASES} cannot be read ({reason}); make it with"
            f" `mnemoscope analyze {atlas.path} refinement_events`"
        ) from error


def _count_prefixes(atlas: Atlas, keys: list[Item]) -> list[int]:
    """How many different prefixes each key shows."""
    found = []
    for layer in sorted({key.layer for key in keys}):
        memories = [key.memory for key in keys if key.layer == layer]
        rows = atlas.tables.having("triggers", layer, column="memory", ids=memories)
        rows = rows.filter((pl.col("sign") == 1) & (pl.col("rank") < TOP))
        found += rows.group_by("memory").agg(pl.col("prefix_group").n_unique()).sort("memory")["prefix_group"].to_list()
    return found


def _different_places(atlas: Atlas, places: list[tuple[int, int]], size: int) -> list[list[int]]:
    """The first `size` places whose prefixes are different, from different sentences."""
    stored = atlas.sentences([sentence for sentence, _ in places], columns=["sentence", "tokens"])
    tokens = dict(zip(stored["sentence"].to_list(), stored["tokens"].to_list(), strict=True))
    seen: set[tuple[int, ...]] = set()
    used: set[int] = set()
    found = []
    for sentence, position in places:
        prefix = tuple(tokens[sentence][: position + 1])
        if prefix not in seen and sentence not in used:
            seen.add(prefix)
            used.add(sentence)
            found.append([sentence, position])
            if len(found) == size:
                break
    return found
