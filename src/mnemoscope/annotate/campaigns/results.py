"""Statistics of judgements by people, or by models: Figure 2, false alarms, agreement, and with automatic patterns.

Counts finished items of the campaign, and sheets. For intervals, a key with all its prefixes and authors is a cluster.
"""

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.annotate.campaigns.store import Store
from mnemoscope.annotate.campaigns.views import read_judgements
from mnemoscope.annotate.judgements.reading import ALL_VERDICTS, final_verdicts, majority_calls
from mnemoscope.annotate.judgements.rules import AUTHOR_KINDS, check_choice
from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import NOTHING, Estimate, Resamples, clustered_share, enclose, ends
from mnemoscope.patterns import coverage

KEY = ("layer", "memory")
_ALL = pl.lit(True)
Numbers = Iterable[tuple[int | None, str, Estimate]]
Unit = Sequence[Hashable]
"""The values that authors gave to one unit, without missing ones."""
_SCHEMA = {
    "layer": pl.Int16,
    "name": pl.String,
    "value": pl.Float64,
    "count": pl.Int64,
    "low": pl.Float64,
    "high": pl.Float64,
}
_PREFIXES = {"layer": pl.Int16, "memory": pl.Int32, "rank": pl.Int16, "group": pl.Int16}


@dataclass(frozen=True)
class Results:
    """Tables have layer (null in totals), name, value (null if undefined), count, low, high; `authors` differs."""

    figure: pl.DataFrame
    """Figure 2, by layer and in all; names as in the question key_patterns."""
    controls: pl.DataFrame
    """False alarms: `controls_with_pattern` of the controls, `controls_covered` of their prefixes."""
    agreement: pl.DataFrame
    """Krippendorff's alpha between authors: `key_class`, `trigger_marked`, `trigger_class`, `composition`."""
    automatic: pl.DataFrame
    """Against patterns.parquet, by layer and in all; names as of `_against_automatic`."""
    compositions: pl.DataFrame
    """As `majority_calls`."""
    authors: pl.DataFrame
    """author, keys, controls and compositions finished, patterns_per_key, controls_with_pattern."""


def compute_results(store: Store, by: str = "person") -> Results:
    """`by`: person or model. Tables are empty, or values null, without judgements. AnnotationError, AtlasDamaged."""
    ours = pl.col("model") == (check_choice(by, AUTHOR_KINDS, what="kind of author") == "model")
    with store.database.reading() as connection:
        judged = read_judgements(connection, store.database.path).filter(pl.col("sampled"), ours)
        cases = final_verdicts([tuple(row) for row in connection.execute(ALL_VERDICTS)]).filter(ours)
        drawn = connection.execute("SELECT layer, memory, content FROM items WHERE kind = 'control' ORDER BY memory")
        ranks = [
            (layer, memory, rank, rank) for layer, memory, content in drawn for rank in range(len(json.loads(content)))
        ]
    shown = pl.DataFrame(ranks, schema=_PREFIXES, orient="row")
    keys, controls = (judged.filter(control=flag) for flag in (False, True))
    frames = [pl.DataFrame(schema=_PREFIXES)]
    for (layer,), here in keys.sort("layer").group_by("layer", maintain_order=True):
        rows = store.atlas.best_triggers(layer, memories=here["memory"].unique().to_list())
        frames.append(rows.select(pl.lit(layer, pl.Int16).alias("layer"), "memory", "rank", group="prefix_group"))
    prefixes = pl.concat(frames)
    campaign = store.campaign()
    seed = 0 if campaign is None else campaign.seed
    people, called, blind = _marks(prefixes, keys), _classes(keys), _classes(controls)
    marked = _marks(shown.join(controls.select(KEY).unique(), on=KEY, how="semi"), controls)
    false_alarms = (
        (None, "controls_with_pattern", _share_of_keys(blind, pl.col("patterns") > 0)),
        (None, "controls_covered", _share_of_keys(marked, pl.col("kind") != "none")),
    )
    return Results(
        _table(_figure(keys, prefixes)),
        _table(false_alarms),
        _table(_agreement(people, called, cases, seed)),
        _table(_against_automatic(store.atlas, prefixes, people, called)),
        _table((None, name, one) for name, one in majority_calls(cases).items()),
        _authors(called, blind, cases),
    )


def _marks(prefixes: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """Each author's kind for each prefix of the keys they judged; `none` without a pattern."""
    schema = {"layer": pl.Int16, "memory": pl.Int32, "group": pl.Int16, "kind": pl.String, "author": pl.String}
    frames = [pl.DataFrame(schema=schema)]
    for (layer, author), rows in judged.group_by("layer", "author", maintain_order=True):
        judged_prefixes = prefixes.filter(pl.col("memory").is_in(rows["memory"].unique().to_list()))
        kinds = _kinds_in_layer(layer, judged_prefixes, rows.filter(pl.col("kind") != "none"))
        frames.append(kinds.with_columns(author=pl.lit(author, pl.String)))
    return pl.concat(frames)


def _kinds_in_layer(layer: Any, prefixes: pl.DataFrame, patterns: pl.DataFrame) -> pl.DataFrame:
    kinds = coverage.kinds(prefixes.filter(layer=layer).drop("layer"), patterns)
    return kinds.select(pl.lit(layer, pl.Int16).alias("layer"), "memory", "group", "kind")


def _classes(judged: pl.DataFrame) -> pl.DataFrame:
    patterns = (pl.col("kind") != "none").sum().cast(pl.Int64)
    return judged.group_by(*KEY, "author").agg(patterns.alias("patterns"), _class_of("class")).sort(*KEY, "author")


def _table(rows: Numbers) -> pl.DataFrame:
    cells = [(layer, name, one.value, one.count, one.low, one.high) for layer, name, one in rows]
    return pl.DataFrame(cells, schema=_SCHEMA, orient="row")


def _figure(keys: pl.DataFrame, prefixes: pl.DataFrame) -> Numbers:
    counted: dict[int | None, pl.DataFrame] = {}
    for layer in sorted(keys["layer"].unique().to_list()):
        here = prefixes.filter(layer=layer).drop("layer")
        counted[layer] = coverage.count_by_author(here, keys.filter(layer=layer))
    if counted:
        counted[None] = pl.concat(list(counted.values()))
    for layer, counts in counted.items():
        for name, estimate in coverage.mean_over_authors(counts).items():
            yield layer, name, estimate


def _agreement(people: pl.DataFrame, classes: pl.DataFrame, cases: pl.DataFrame, seed: int) -> Numbers:
    people = people.sort(*KEY, "group", "author")
    marked = people.with_columns(pl.col("kind") != "none")
    yield None, "key_class", alpha(_units(classes, KEY, (), "class"), seed=seed)
    yield None, "trigger_marked", alpha(_units(marked, KEY, ("group",), "kind"), seed=seed)
    yield None, "trigger_class", alpha(_units(people, KEY, ("group",), "kind"), seed=seed)
    yield None, "composition", alpha(_units(cases, ("case",), (), "verdict"), seed=seed)


def _authors(keys: pl.DataFrame, controls: pl.DataFrame, cases: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for author in sorted({*keys["author"], *controls["author"], *cases["author"]}):
        judged, blind, verdicts = (frame.filter(author=author) for frame in (keys, controls, cases))
        alarms = (blind["patterns"] > 0).sum() / blind.height if blind.height else None
        rows.append((author, judged.height, blind.height, verdicts.height, judged["patterns"].mean(), alarms))
    schema = {
        "author": pl.String,
        "keys": pl.Int64,
        "controls": pl.Int64,
        "compositions": pl.Int64,
        "patterns_per_key": pl.Float64,
        "controls_with_pattern": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def alpha(clusters: Sequence[Sequence[Unit]], *, seed: int = 0) -> Estimate:
    """Krippendorff's alpha for nominal data (Content Analysis, 2004, chapter 11); the count is that of pairable values.

    A bootstrap resamples the clusters of units (the prefixes of one key). Undefined for fewer than two pairable values,
    or if all are equal.
    """
    names = {
        value: place for place, value in enumerate(dict.fromkeys(v for units in clusters for u in units for v in u))
    }
    counted = np.stack([_coincidences(units, names) for units in clusters]) if clusters else np.zeros((0, 0, 0))
    counted = counted[counted.sum((1, 2)) > 0]
    estimate = _alpha(counted.sum(0)[None])[0] if len(counted) else np.nan
    if np.isnan(estimate):
        return NOTHING
    count = round(float(counted.sum()))
    if len(counted) < 2:
        return Estimate(float(estimate), count)
    sums = Resamples(len(counted), seed).sums(counted.reshape(len(counted), -1))
    return enclose(float(estimate), count, ends(_alpha(sums.reshape(-1, len(names), len(names)))))


def _coincidences(units: Sequence[Unit], names: dict[Hashable, int]) -> NDArray[np.float64]:
    matrix = np.zeros((len(names), len(names)))
    for unit in units:
        if len(unit) > 1:
            counts = np.bincount([names[value] for value in unit], minlength=len(names))
            matrix += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return matrix


def _alpha(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Alpha of each matrix `[draw, value, value]`; NaN if all values are equal."""
    whole = matrices.sum((1, 2))
    margins = matrices.sum(2)
    observed = whole - np.trace(matrices, axis1=1, axis2=2)
    expected = np.square(whole) - np.square(margins).sum(1)
    # Margins are sums of fractions, so a zero may be inexact.
    some = expected > 1e-9 * np.maximum(1.0, np.square(whole))
    ratio = np.divide((whole - 1) * observed, expected, out=np.full(len(whole), np.nan), where=some)
    alphas: NDArray[np.float64] = 1 - ratio
    return alphas


def _units(rows: pl.DataFrame, cluster: tuple[str, ...], unit: tuple[str, ...], value: str) -> list[list[Unit]]:
    units = rows.group_by(*cluster, *unit, maintain_order=True).agg(value)
    return units.group_by(*cluster, maintain_order=True).agg(value)[value].to_list()


def _against_automatic(atlas: Atlas, prefixes: pl.DataFrame, people: pl.DataFrame, keys: pl.DataFrame) -> Numbers:
    """`precision`: of prefixes that automatic patterns explain, the share that people mark; `recall`: of those that
    people mark, the share explained; `same_kind`: of those of both, the share with the same kind; `same_class`: of
    keys, the share with the same class.
    """
    if keys.is_empty() or not atlas.has("patterns"):
        return
    patterns = atlas.table("patterns")
    layers = sorted(keys["layer"].unique().to_list())
    kinds = [_kinds_in_layer(layer, prefixes, patterns.filter(layer=layer)) for layer in layers]
    explaining = pl.concat(kinds).rename({"kind": "automatic"})
    both = people.join(explaining, on=[*KEY, "group"], how="left", maintain_order="left")
    automatic = patterns.group_by(KEY).agg(_class_of("automatic"))
    classes = keys.join(automatic, on=KEY, how="left", maintain_order="left")
    marked, explained = pl.col("kind") != "none", pl.col("automatic") != "none"
    alike = pl.col("kind") == pl.col("automatic")
    same = pl.col("class") == pl.col("automatic").fill_null("none")
    for layer in [*layers, None]:
        rows, compared = (frame if layer is None else frame.filter(layer=layer) for frame in (both, classes))
        yield layer, "precision", _share_of_keys(rows, marked & explained, explained)
        yield layer, "recall", _share_of_keys(rows, marked & explained, marked)
        yield layer, "same_kind", _share_of_keys(rows, marked & explained & alike, marked & explained)
        yield layer, "same_class", _share_of_keys(compared, same)


def _share_of_keys(rows: pl.DataFrame, hits: pl.Expr, cases: pl.Expr = _ALL) -> Estimate:
    counts = rows.with_columns(hit=hits.cast(pl.Int64), case=cases.cast(pl.Int64))
    keys = counts.group_by(KEY, maintain_order=True).agg(pl.col("hit", "case").sum())
    return clustered_share(keys["hit"], keys["case"])


def _class_of(name: str) -> pl.Expr:
    shallow, semantic = (pl.col("kind").is_in([kind, "both"]).any() for kind in ("shallow", "semantic"))
    return coverage.kind_of(shallow, semantic).alias(name)
