"""Memories of two models that fire alike: correlations over the table `samples` (Gurnee 2024, universal neurons)."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasesDiffer
from mnemoscope.foundation.progress import Progress

LEAST_NONZERO = 20
"""Samples that are not zero, below which a memory is left out."""
UNIVERSAL = 0.5
_ROTATED, _ROWS = 2_048, 1_024
"""Most memories that are rotated together, larger layers being divided at random; rows of a product."""

Samples = NDArray[np.float32]


def excess_correlations(first: Atlas, second: Atlas, *, seed: int, progress: Progress) -> pl.DataFrame:
    """For each memory of the first with enough samples: layer, memory, other (the memory of the second that it
    correlates with most), correlation, control (the largest correlation after a rotation within the second's layers),
    excess, universal. Raises AtlasesDiffer where the sampled prefixes are not the same.
    """
    if not first.table("background").equals(second.table("background")):
        raise AtlasesDiffer(f"{first.path} and {second.path} have samples of different prefixes; mine with one --seed")
    own = [_frequent(first, layer) for layer in first.layers]
    units = _units(np.concatenate([rows for _, rows in own]))
    correlation, control = np.full((2, len(units)), -1.0, np.float32)
    other = np.full(len(units), None, object)
    for done, layer in enumerate(second.layers):
        progress("correlating", done, len(second.layers), "layers")
        theirs, rows = _frequent(second, layer)
        rotated, rows = _units(_rotate(rows, np.random.default_rng((seed, 12, layer)))), _units(rows)
        for start in range(0, len(units) if theirs else 0, _ROWS):
            part = slice(start, start + _ROWS)
            products = units[part] @ rows.T
            best = products.max(1)
            other[part] = np.where(best > correlation[part], np.array(theirs)[products.argmax(1)], other[part])
            correlation[part] = np.maximum(correlation[part], best)
            control[part] = np.maximum(control[part], (units[part] @ rotated.T).max(1))
    progress("correlating", len(second.layers), len(second.layers), "layers")
    names = [name for every, _ in own for name in every]
    layers = np.repeat(first.layers, [len(every) for every, _ in own])
    columns = {"layer": layers, "memory": names, "other": [*other], "correlation": correlation, "control": control}
    excess = pl.col("correlation") - pl.col("control")
    found = pl.DataFrame(columns, schema_overrides={"memory": pl.String, "other": pl.String})
    return found.with_columns(excess=excess, universal=excess > UNIVERSAL)


def _frequent(atlas: Atlas, layer: int) -> tuple[list[str], Samples]:
    """The memories with enough samples that are not zero, and their samples `[memory, prefix]`."""
    table = atlas.table("samples", layer=layer).sort("memory")
    stored = table["coefficients"].explode().to_numpy().astype(np.float32).reshape(table.height, -1)
    frequent = np.flatnonzero((stored != 0).sum(1) >= LEAST_NONZERO)
    names = [str(atlas.name(layer, number)) for number in frequent.tolist()]
    return names, stored[frequent] * table["scale"].to_numpy()[frequent, None]


def _units(rows: Samples) -> Samples:
    """The rows without their mean, of length 1: their products are Pearson's correlations."""
    centred = rows - rows.mean(1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12))


def _rotate(rows: Samples, generator: np.random.Generator) -> Samples:
    rotated = np.empty_like(rows)
    for group in np.array_split(generator.permutation(len(rows)), 1 + len(rows) // _ROTATED):
        q, r = np.linalg.qr(generator.standard_normal((len(group), len(group))))
        rotated[group] = (q * np.sign(np.diag(r))).astype(np.float32) @ rows[group]
    return rotated
