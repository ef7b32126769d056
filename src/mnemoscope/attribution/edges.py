"""Edges: what the ablation of one memory changes in the coefficients of others (definitions.md section 9), read in the
forwards of the ablations themselves.

Everything behind an ablation is recomputed, so an edge is a total effect, through all paths: nothing is said of direct
ones, and sums over paths count them twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mnemoscope.attribution.ablations import Grid, Places
from mnemoscope.foundation.intervals import Floats
from mnemoscope.models import LanguageModel, read_coefficients

_NAMES = {"source": pl.String, "source_position": pl.Int64, "target": pl.String, "target_position": pl.Int64}
NO_EDGES = pl.DataFrame(schema={**_NAMES, "change": pl.Float64, "share": pl.Float64})
SMALL = 1e-3
"""Of its layer's median |m|: a smaller coefficient has no share, which would be a quotient of rounding."""


@contextmanager
def read_places(model: LanguageModel, grid: Grid, places: Places) -> Iterator[Callable[[], Floats]]:
    """Reads some places in the forwards inside the block; what it yields gives their coefficients `[row, place]`."""
    layers, columns, memories = grid.split(places)
    at = {layer: np.flatnonzero(layers == layer) for layer in np.unique(layers).tolist()}
    read: dict[int, list[Tensor]] = {layer: [] for layer in at}

    def take(layer: int, coefficients: Tensor) -> None:
        column, memory = (torch.from_numpy(one[at[layer]]).to(coefficients.device) for one in (columns, memories))
        read[layer].append(coefficients[:, column, memory].float())

    def gather() -> Floats:
        rows = sum(map(len, next(iter(read.values()), [])))
        whole = np.zeros((rows, len(places)))
        for layer, parts in read.items():
            whole[:, at[layer]] = torch.cat(parts).cpu().numpy()
        return whole

    with read_coefficients(model, take, layers=at, own_thread=True):
        yield gather


def strongest_edges(
    model: LanguageModel, grid: Grid, places: Places, lost: Floats, before: Floats, without: Floats, *, count: int
) -> pl.DataFrame:
    """The `count` edges between these places that move F most, by |share * what F loses without the target|; those
    without a share come last. A target lies in a later layer than its source, and in a causal model at no earlier
    position.

    `lost [place]` is what F loses without each, `before` the coefficient of every place of the grid, and `without
    [source, target]` those of the places without each of them.
    """
    layers, columns, _ = grid.split(places)
    own, outside, least = before[places].astype(np.float64), grid.outside, np.zeros(len(places))
    for layer in np.unique(layers):
        whole = slice(*grid.firsts[layer : layer + 2])
        least[layers == layer] = SMALL * np.median(np.abs(before[whole][outside[whole]]))
    changes = own - without
    shares = np.divide(changes, own, out=np.full_like(changes, np.nan), where=np.abs(own) >= least)
    seen = (columns >= columns[:, None]) | (not model.reading.causal)
    behind = (layers > layers[:, None]) & seen & (changes != 0)
    sources, targets = behind.nonzero()
    moved = np.nan_to_num(np.abs(shares * lost)[sources, targets], nan=-1.0)
    first = np.argsort(-moved, kind="stable")[:count]
    sources, targets = sources[first], targets[first]
    ends = [grid.names(model, places[one]).values() for one in (sources, targets)]
    numbers = changes[sources, targets], shares[sources, targets]
    columns_of = dict(zip(NO_EDGES.columns, [*ends[0], *ends[1], *numbers], strict=True))
    return pl.DataFrame(columns_of, schema=NO_EDGES.schema, nan_to_null=True)
