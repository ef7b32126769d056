"""How far people agree beyond chance, with each other and with automatic patterns.

With each other: Krippendorff's alpha for nominal data, with a bootstrap over items (Krippendorff, Content Analysis,
2004, chapter 11: alpha = 1 - D_o / D_e over the matrix of coincidences; units that one person alone judged say nothing
and are left out). With the patterns of patterns.parquet: which prefixes of the judged keys both explain, and whether
they call them alike. An author's word on a key counts as one comparison; intervals take a key, with all its prefixes
and authors, as a cluster.
"""

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.intervals import NOTHING, Estimate, Resamples, clustered_share
from mnemoscope.patterns import coverage

KEY = ("layer", "memory")
EVERY = pl.lit(True)
Numbers = Iterator[tuple[int | None, str, Estimate]]
"""Layer (None: in all), name and estimate."""
Unit = Sequence[Hashable]
"""The values that different people gave to one thing; missing ones are left out."""


def alpha(clusters: Sequence[Sequence[Unit]], *, seed: int = 0) -> Estimate:
    """Krippendorff's alpha of all units, its count of values that could be paired, and a 95 % interval.

    The units come in clusters (the prefixes of one key): the interval is from a seeded bootstrap over clusters, widened
    to hold the value. No value where fewer than two values can be paired, or all are the same: then chance alone would
    agree as well.
    """
    names = {
        value: place for place, value in enumerate(dict.fromkeys(v for units in clusters for u in units for v in u))
    }
    counted = np.stack([_coincidences(units, names) for units in clusters]) if clusters else np.zeros((0, 0, 0))
    counted = counted[counted.sum((1, 2)) > 0]
    found = _alpha(counted.sum(0)[None])[0] if len(counted) else np.nan
    if np.isnan(found):
        return NOTHING
    count = round(float(counted.sum()))
    if len(counted) < 2:
        return Estimate(float(found), count)
    size = len(names)
    sums = Resamples(len(counted), seed).sums(counted.reshape(len(counted), -1)).reshape(-1, size, size)
    drawn = _alpha(sums)
    drawn = np.sort(drawn[~np.isnan(drawn)])
    if not drawn.size:
        return Estimate(float(found), count)
    low, high = (float(drawn[max(0, int(np.ceil(level * drawn.size)) - 1)]) for level in (0.025, 0.975))
    return Estimate(float(found), count, min(low, float(found)), max(high, float(found)))


def _coincidences(units: Sequence[Unit], names: dict[Hashable, int]) -> NDArray[np.float64]:
    """The matrix of coincidences `[value, value]`: every unit adds as much as it has values that can be paired."""
    matrix = np.zeros((len(names), len(names)))
    for unit in units:
        if len(unit) < 2:
            continue
        counts = np.zeros(len(names))
        for value in unit:
            counts[names[value]] += 1
        matrix += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return matrix


def _alpha(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Alpha of each matrix `[draw, value, value]`; NaN where all values are the same."""
    whole = matrices.sum((1, 2))
    margins = matrices.sum(2)
    observed = whole - np.trace(matrices, axis1=1, axis2=2)
    expected = np.square(whole) - np.square(margins).sum(1)
    # Margins are sums of thirds and the like: what should be zero may be off by rounding.
    some = expected > 1e-9 * np.maximum(1.0, np.square(whole))
    ratio = np.divide((whole - 1) * observed, expected, out=np.full(len(whole), np.nan), where=some)
    found: NDArray[np.float64] = 1 - ratio
    return found


def units(rows: pl.DataFrame, cluster: tuple[str, ...], unit: tuple[str, ...], value: str) -> list[list[Unit]]:
    """The values that were given to each unit, by cluster."""
    found: dict[object, list[Unit]] = {}
    grouped = rows.group_by(*cluster, *unit, maintain_order=True).agg(pl.col(value))
    for row in grouped.iter_rows(named=True):
        found.setdefault(tuple(row[name] for name in cluster), []).append(row[value])
    return list(found.values())


def against_automatic(atlas: Atlas, prefixes: pl.DataFrame, people: pl.DataFrame, keys: pl.DataFrame) -> Numbers:
    """By layer and in all, `precision`: of the prefixes that automatic patterns explain, the share that people mark;
    `recall`: of those that people mark, the share explained; `same_kind`: of those that both explain, the share with
    the same kind; `same_class`: of keys, the share with the same class. Nothing where there are no patterns.

    `people` says what authors make of `prefixes`, `keys` what they call keys, as results.py gives them.
    """
    if keys.is_empty() or not atlas.has("patterns"):
        return
    patterns = atlas.table("patterns")
    frames = []
    for (layer,), here in prefixes.group_by("layer", maintain_order=True):
        found = coverage.kinds(here.drop("layer"), patterns.filter(pl.col("layer") == layer))
        frames.append(found.select(pl.lit(layer, pl.Int16).alias("layer"), "memory", "group", automatic="kind"))
    both = people.join(pl.concat(frames), on=[*KEY, "group"], how="left", maintain_order="left")
    kinds = {kind: (pl.col("kind") == kind).any() for kind in ("shallow", "semantic")}
    called = patterns.group_by(KEY).agg(**kinds).select(*KEY, automatic=class_of())
    classes = keys.join(called, on=KEY, how="left", maintain_order="left")
    marked, explained = pl.col("kind") != "none", pl.col("automatic") != "none"
    alike = pl.col("kind") == pl.col("automatic")
    same = pl.col("class") == pl.col("automatic").fill_null("none")
    for layer in [*sorted(keys["layer"].unique().to_list()), None]:
        rows, own = (frame if layer is None else frame.filter(pl.col("layer") == layer) for frame in (both, classes))
        yield layer, "precision", share_of_keys(rows, marked & explained, explained)
        yield layer, "recall", share_of_keys(rows, marked & explained, marked)
        yield layer, "same_kind", share_of_keys(rows, marked & explained & alike, marked & explained)
        yield layer, "same_class", share_of_keys(own, same)


def share_of_keys(rows: pl.DataFrame, hits: pl.Expr, cases: pl.Expr = EVERY) -> Estimate:
    """The share of `hits` among the rows that are `cases`; a key is a cluster."""
    counts = rows.with_columns(hit=hits.cast(pl.Int64), case=cases.cast(pl.Int64))
    keys = counts.group_by(KEY, maintain_order=True).agg(pl.col("hit", "case").sum())
    return clustered_share(keys["hit"], keys["case"])


def class_of() -> pl.Expr:
    """The class that the columns `shallow` and `semantic` make."""
    shallow, semantic = pl.col("shallow"), pl.col("semantic")
    return (
        pl.when(shallow & semantic).then(pl.lit("both"))
        .when(shallow).then(pl.lit("shallow"))
        .when(semantic).then(pl.lit("semantic"))
        .otherwise(pl.lit("none"))
    )  # fmt: skip
