"""The features of a memory: one for each sign of its coefficient that has triggers, and what its value then promotes
(definitions.md section 2, "two features a memory").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas.schema import TABLES
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, ZERO_BIN

if TYPE_CHECKING:
    from mnemoscope.atlas.tables import Tables

_LEAST_EXTREME, _MOST_EXTREME = 2.0**-7, 512.0
"""Extremes for which an eighth, rounded down to a power of two, is an edge of the histogram."""
AT_WORK = ("working_probability", "working_probability_negative")
"""The columns of `values` at typical activations, by sign."""
FEATURE_COLUMNS = ("top_z", "bottom_z", "clear_z", "working_logit", "working_logit_negative")
"""The columns of `values` that tell whether a feature is there and promotes its token."""
_ENDS: tuple[tuple[Literal[1, -1], Literal["top", "bottom"], str], ...]
_ENDS = (1, "top", "working_logit"), (-1, "bottom", "working_logit_negative")
"""By sign: which tokens a feature votes for, and the column that is null without it."""
IN_AND_OUT = ("key_value", "up_value", "gate_value", "gate_up", "removes_below", "adds_above")
"""The columns of `roles` about what a memory does to what it reads."""
STRONG = ("strong", "strong_negative")
"""The columns of `strongly_active`, by sign."""


def value_rows(atlas: "Tables", layer: int, columns: Sequence[str]) -> pl.DataFrame:
    """These columns of `values`; of an encoder alone they are null, but for `memory`."""
    if not atlas.manifest.keys_only:
        return atlas.table("values", layer=layer, columns=columns)
    empty = pl.DataFrame(TABLES["values"].columns.empty_table()).select(columns)
    memories = atlas.table("activity", layer=layer, columns=["memory"])
    return pl.concat([empty, memories], how="diagonal").select(columns)


@dataclass(frozen=True)
class MemoryFeature:
    """`end` names the tokens that it votes for, `distance` is that of the first one's score from the mean, in standard
    deviations; random directions reach `clear` in one case of a hundred.
    """

    sign: Literal[1, -1]
    end: Literal["top", "bottom"]
    distance: float
    clear: float

    @property
    def promotes(self) -> bool:
        """Whether it promotes its first token; if not, it has no clear token."""
        return self.distance > self.clear


def features_of(value: Mapping[str, Any]) -> list[MemoryFeature]:
    """The features of a memory, of its row of `values`; none in an atlas without values at typical activations."""
    return [
        MemoryFeature(sign, end, value[f"{end}_z"], value["clear_z"])
        for sign, end, at_work in _ENDS
        if None not in (value[f"{end}_z"], value["clear_z"], value[at_work])
    ]


def promoted_tokens(value: Mapping[str, Any], sign: int = 1) -> Sequence[int]:
    """The tokens that the feature of a sign promotes, the first one most; none where it has no clear token. The one
    rule by which anything is said to promote a token.
    """
    clear = [one.end for one in features_of(value) if one.sign == sign and one.promotes]
    if sign > 0 and not clear and None not in (value["top_z"], value["clear_z"]) and value["top_z"] > value["clear_z"]:
        clear = ["top"]  # what never fires, or was mined without prefixes, has no typical activation, but a first token
    return value[f"{clear[0]}_tokens"] if clear else ()


def clear_columns() -> list[pl.Expr]:
    """`promotes` and `promotes_negative` of rows of `values`, as `features_of` says, null without the feature; and
    `clear`, by how many standard deviations the clearer of both is beyond what random directions reach.
    """
    beyond = [
        pl.when(pl.col(at_work).is_not_null()).then(pl.col(f"{end}_z") - pl.col("clear_z")) for _, end, at_work in _ENDS
    ]
    names = ("promotes", "promotes_negative")
    signs = [(one > 0).alias(name) for one, name in zip(beyond, names, strict=True)]
    return [*signs, pl.max_horizontal(beyond).alias("clear")]


def in_and_out_columns() -> list[pl.Expr]:
    """Of rows of `roles` the `cosine` of what a memory reads with what it writes, and whether it `adds` to it or
    `removes` it (definitions.md section 9, input_output). Null where that is unknown.
    """
    cosine = pl.coalesce("up_value", "key_value")
    adds, removes = cosine > pl.col("adds_above"), cosine < pl.col("removes_below")
    return [cosine.alias("cosine"), adds.alias("adds"), removes.alias("removes")]


def strongly_active(activity: pl.DataFrame) -> pl.DataFrame:
    """`strong` and `strong_negative`, for rows of `activity`: the share of sampled prefixes at which each feature of a
    memory is strongly active (definitions.md section 2). Null where a sign never occurs or its extreme is too small or
    too large for the histogram's edges.
    """
    sampled = np.maximum(activity["sampled"].to_numpy(), 1)
    columns = {}
    for name, sign in zip(STRONG, (1, -1), strict=True):
        edge = strong_edge(activity, sign)
        share = np.where(edge > 0, sampled_beyond(activity, sign, edge) / sampled, np.nan)
        columns[name] = pl.Series(share).fill_nan(None)
    return pl.DataFrame(columns)


def strong_edge(activity: pl.DataFrame, sign: int) -> NDArray[np.int64]:
    """The number, from 1, of the largest positive edge that is at most an eighth of each memory's extreme of the sign;
    0 where the extreme is too small or too large.
    """
    extreme = sign * activity["max" if sign == 1 else "min"].to_numpy().astype(np.float64)
    in_range = (extreme >= _LEAST_EXTREME) & (extreme <= _MOST_EXTREME)
    return np.where(in_range, np.searchsorted(HISTOGRAM_EDGES[ZERO_BIN:], extreme / 8, side="right"), 0)


def sampled_beyond(activity: pl.DataFrame, sign: int, edge: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of sampled positions at which each coefficient is at or above the edge of that number (sign -1: below
    its negative). Edge 0 stands for 0.
    """
    counts = np.array(activity["histogram"].to_list(), np.int64).reshape(activity.height, len(HISTOGRAM_EDGES) + 1)
    rows = np.arange(activity.height)
    # Bin i holds edges[i-1] <= x < edges[i]; the edges lie around zero alike.
    if sign == 1:
        return np.asarray(np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][rows, ZERO_BIN + edge])
    return np.asarray(np.cumsum(counts, axis=1)[rows, ZERO_BIN - 1 - edge])


def mean_magnitude(activity: pl.DataFrame) -> NDArray[np.float64]:
    """The mean of |m| `[memory]` over the mined text, from the rows of `activity` of one layer.

    If no coefficient is below zero that is the mean, exactly. Otherwise it is the mean plus twice the negative part,
    estimated from the middles of the bins of the sampled positions' histogram (to within a third, as a bin's ends
    differ by a factor of two, and sampling error). It lies between |mean| and the largest |m|.
    """
    mean, least, most = (activity[name].cast(pl.Float64).to_numpy() for name in ("mean", "min", "max"))
    counts = np.array(activity["histogram"].to_list(), np.float64).reshape(len(mean), -1)[:, :ZERO_BIN]
    lows = np.array([-np.inf, *HISTOGRAM_EDGES[: ZERO_BIN - 1]])
    highs = np.array(HISTOGRAM_EDGES[:ZERO_BIN])
    # No coefficient lies below the least one.
    middles = (np.maximum(lows, np.minimum(least, 0.0)[:, None]) + highs) / 2
    sampled = np.maximum(activity["sampled"].to_numpy(), 1)
    below = np.where(least < 0, (counts * np.minimum(middles, 0.0)).sum(1) / sampled, 0.0)
    return np.asarray(np.clip(mean - 2 * below, np.abs(mean), np.maximum(np.abs(least), np.abs(most))), np.float64)
