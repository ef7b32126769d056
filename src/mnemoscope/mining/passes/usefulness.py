"""How much use a layer makes of each of its memories, and which of them are there twice.

Usefulness is the mean of |m| over the mined text, times the norm of the value (definitions.md section 9, width): what
the memory puts into the stream, on average. It is read off the tables `activity` and `values`. Runs no model.
"""

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, ZERO_BIN
from mnemoscope.models import LanguageModel

SAME = 0.9
"""Cosine above which two values, or two keys, count as the same."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def mean_magnitude(activity: pl.DataFrame) -> Floats:
    """The mean of |m| `[memory]` over the mined text, from the rows of `activity` of one layer.

    Where no coefficient is below zero that is the mean, exactly. Elsewhere it is the mean plus twice the size of the
    negative part, which the table does not have: it is taken from the histogram of the sampled positions, whose bins
    stand for their middles (each end of a bin is twice the other, so the part is right to a third of itself, and to
    what the sample misses). It lies between |mean| and the largest |m|.
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


def usefulness(activity: pl.DataFrame, value_norm: Floats, *, layer: int) -> Floats:
    """The mean of |m| times the norm of the value, `[memory]`; raises NotFinite."""
    found = mean_magnitude(activity) * value_norm
    if not np.isfinite(found).all():
        raise NotFinite(f"layer {layer} has coefficients or values that are not finite; check the model's weights")
    return found


def least_useful_first(useful: Floats) -> Ints:
    """The memories in order of usefulness; of equally useful ones the lower first."""
    return np.argsort(useful, kind="stable")


def find_duplicates(model: LanguageModel, layer: int) -> NDArray[np.bool_]:
    """Which memories `[memory]` of a layer have another one of that layer whose value and key are the same.

    The same: a cosine above `SAME`; in a gated layer of both keys. A row of zeros is the same as nothing.
    """
    with torch.inference_mode():
        every = [model.values(layer), model.keys(layer), model.up_keys(layer)]
        units = [_directions(rows) for rows in every if rows is not None]
        count = len(units[0])
        step = rows_within(BUDGET.cosines, count)
        found = [_have_a_twin(units, slice(start, min(start + step, count))) for start in range(0, count, step)]
    return np.concatenate(found)


def _directions(rows: Tensor) -> Tensor:
    return normalize(rows.float(), dim=1, eps=torch.finfo(torch.float32).tiny)


def _have_a_twin(units: list[Tensor], own: slice) -> NDArray[np.bool_]:
    alike = units[0][own] @ units[0].T > SAME
    for unit in units[1:]:
        alike &= (unit[own] @ unit.T > SAME).to(alike.device)
    rows = torch.arange(own.stop - own.start, device=alike.device)
    alike[rows, own.start + rows] = False
    found: NDArray[np.bool_] = alike.any(1).cpu().numpy()
    return found
