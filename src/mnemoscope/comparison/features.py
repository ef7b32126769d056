"""The features (memory and sign) of one layer in two atlases: shared triggers, and which were born, died or repurposed
(definitions.md section 9, compare).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import sampled_beyond, strong_edge

LEAST_POSITIONS = 50
"""Sampled positions beyond the edge at which a feature must fire to die or be born."""
REPURPOSED = 0.1
"""The Jaccard index below which triggers are others."""
PAIRS, CHANCE = 10_000, 0.95
_SPAN = 1 << 24
"""More than the positions of any sentence."""

Array = NDArray[Any]


@dataclass(frozen=True)
class LayerFeatures:
    """`places [sign, memory, rank]` are triggers, sentence and position as one number, -1 where there is none, for the
    signs +1 and -1. `signed`: some coefficient is below zero.
    """

    activity: pl.DataFrame
    places: Array
    signed: bool

    @classmethod
    def read(cls, atlas: Atlas, layer: int) -> "LayerFeatures":
        activity = atlas.table("activity", layer=layer).sort("memory")
        rows = atlas.table("triggers", layer=layer).select("memory", "sign", "rank", "sentence", "position")
        memory, sign, rank, sentence, position = rows.cast(pl.Int64).to_numpy().T
        places = np.full((2, activity.height, int(rank.max(initial=-1)) + 1), -1, np.int64)
        places[(1 - sign) // 2, memory, rank] = sentence * _SPAN + position
        return cls(activity, places, bool((activity["min"] < 0).any()))

    def edges(self, sign: int) -> Array:
        """The number of each feature's edge; 0 stands for zero, -1 for none."""
        edge = strong_edge(self.activity, sign)
        return np.where(edge > 0, edge, -1) if self.signed else np.zeros_like(edge)

    def beyond(self, sign: int, edge: Array | int = 0) -> Array:
        """Sampled positions beyond the edges; above 0 by the share of all positions: the first bin counts zeros."""
        edge = np.broadcast_to(edge, self.activity.height)
        counts = sampled_beyond(self.activity, sign, np.maximum(edge, 0))
        positive, prefixes, sampled = (self.activity[name].to_numpy() for name in ("positive", "prefixes", "sampled"))
        return np.where((edge == 0) & (sign == 1), positive * sampled / np.maximum(prefixes, 1), counts)

    def rate(self, sign: int) -> Array:
        """The share of prefixes where the coefficient has the sign; below zero of the sampled ones."""
        return np.asarray(self.beyond(sign) / np.maximum(self.activity["sampled"].to_numpy(), 1))

    def lost_in(self, other: "LayerFeatures", sign: int) -> Array:
        """The features that fire here, and nowhere beyond the same edge in the `other`."""
        edge = self.edges(sign)
        fires = (edge >= 0) & (self.beyond(sign, edge) >= LEAST_POSITIONS)
        return np.asarray(fires & (other.beyond(sign, edge) == 0))


def jaccard(first: Array, second: Array) -> Array:
    """The Jaccard indices `[...]` of sets `[..., element]`, where -1 is no element; NaN for two empty sets."""
    both = np.sort(np.concatenate([first, second], axis=-1), axis=-1)
    shared = ((both[..., 1:] == both[..., :-1]) & (both[..., 1:] >= 0)).sum(-1)
    union = (both >= 0).sum(-1) - shared
    return np.where(union > 0, shared / np.maximum(union, 1), np.nan)


def jaccard_by_chance(first: LayerFeatures, second: LayerFeatures, generator: np.random.Generator) -> float:
    """The 95th percentile of the Jaccard indices of different memories, of one sign; -1 without any."""
    memories = first.activity.height
    signs = generator.integers(1 + (first.signed or second.signed), size=PAIRS)
    one, step = generator.integers(memories, size=PAIRS), generator.integers(1, max(2, memories), size=PAIRS)
    found = jaccard(first.places[signs, one], second.places[signs, (one + step) % memories])
    return -1.0 if memories == 1 or np.isnan(found).all() else float(np.nanquantile(found, CHANCE))


def compare_features(first: LayerFeatures, second: LayerFeatures, *, chance: float) -> pl.DataFrame:
    """One row a feature: memory, sign, jaccard, rates, kind (null: as before), and whether it was asked: it has an edge
    where it occurs.
    """
    frames = []
    for number, sign in enumerate((1, -1) if first.signed or second.signed else (1,)):
        places = first.places[number], second.places[number]
        found, died, born = jaccard(*places), first.lost_in(second, sign), second.lost_in(first, sign)
        in_both = (places[0] >= 0).any(1) & (places[1] >= 0).any(1)
        kinds = {"died": died, "born": born, "repurposed": in_both & (found < REPURPOSED) & (found <= chance)}
        asked = [(one.edges(sign) >= 0) | (one.beyond(sign) == 0) for one in (first, second)]
        columns = {"jaccard": found, "rate_before": first.rate(sign), "rate_after": second.rate(sign)}
        columns |= {"kind": np.select([*kinds.values()], [*kinds], ""), "asked": asked[0] & asked[1]}
        frames.append(pl.DataFrame(columns).with_row_index("memory").with_columns(sign=pl.lit(sign, pl.Int8)))
    return pl.concat(frames).with_columns(pl.col("jaccard").fill_nan(None), pl.col("kind").replace("", None))
