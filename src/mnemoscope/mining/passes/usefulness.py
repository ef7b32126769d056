"""How useful each memory is to its layer, and which memories are duplicates. Runs no model.

Usefulness is the mean of |m| over the mined text times the norm of the value (definitions.md section 9, width), read
off the tables `activity` and `values`.
"""

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from mnemoscope.atlas.features import mean_magnitude
from mnemoscope.errors import NotFinite
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models import LanguageModel

SAME = 0.9
"""Cosine above which two values, or two keys, count as the same."""

Floats = NDArray[np.float64]


def usefulness(activity: pl.DataFrame, value_norm: Floats, *, layer: int) -> Floats:
    """The mean of |m| times the norm of the value, `[memory]`; raises NotFinite."""
    found = mean_magnitude(activity) * value_norm
    if not np.isfinite(found).all():
        raise NotFinite(f"layer {layer} has coefficients or values that are not finite; check the model's weights")
    return found


def find_duplicates(model: LanguageModel, layer: int) -> NDArray[np.bool_]:
    """The memories `[memory]` with a twin: cosines of value and key (gated: both keys) above `SAME`."""
    tiny, found = torch.finfo(torch.float32).tiny, []
    with torch.inference_mode():
        every = [model.values(layer), model.keys(layer), model.up_keys(layer)]
        units = [normalize(rows.float(), dim=1, eps=tiny) for rows in every if rows is not None]
        for own in torch.split(torch.arange(len(units[0])), rows_within(BUDGET.cosines, len(units[0]))):
            alike = torch.ones(len(own), len(units[0]), dtype=torch.bool)
            for unit in units:
                alike &= (unit[own.to(unit.device)] @ unit.T > SAME).cpu()
            alike[torch.arange(len(own)), own] = False
            found.append(alike.any(1).numpy())
    return np.concatenate(found)
