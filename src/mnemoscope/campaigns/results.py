"""What people's judgements add up to: Figure 2 from people, false alarms, agreement, people against patterns.

Only finished items of the campaign count. The tables have the form of every answer (layer, name, value, count, low,
high); the numbers of Figure 2 are those of the question key_patterns, with people in place of automatic patterns.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from mnemoscope.campaigns import final_judgements
from mnemoscope.campaigns.agreement import Unit, alpha
from mnemoscope.campaigns.automatic import against_automatic
from mnemoscope.campaigns.final_judgements import KEY
from mnemoscope.campaigns.store import Store
from mnemoscope.intervals import Estimate, clustered_share
from mnemoscope.judgements.verdicts import majority_calls
from mnemoscope.patterns import coverage

_SCHEMA = {
    "layer": pl.Int16, "name": pl.String, "value": pl.Float64, "count": pl.Int64, "low": pl.Float64, "high": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True)
class Results:
    """Tables of what people found; `layer` is null in totals, and a value that is not defined is null."""

    figure: pl.DataFrame
    """Figure 2 from people, by layer and in all: shares of prefixes by kind, keys_with_pattern, patterns_per_key."""
    controls: pl.DataFrame
    """False alarms: `controls_with_pattern` of the controls, `controls_covered` of their prefixes."""
    agreement: pl.DataFrame
    """Krippendorff's alpha between authors: `key_class`, `trigger_marked`, `trigger_class`, `composition`."""
    automatic: pl.DataFrame
    """People against patterns.parquet, by layer and in all: precision, recall, same_kind, same_class."""
    compositions: pl.DataFrame
    """Shares of compositions that most call `related` or `distant`, or as many the one as the other (`split`)."""
    authors: pl.DataFrame
    """author, keys, controls and compositions finished, patterns_per_key, controls_with_pattern."""


def compute_results(store: Store) -> Results:
    """Everything that the judgements add up to so far; no rows, or nulls, where nobody has judged.

    Raises AnnotationError, or AtlasDamaged.
    """
    judged, cases = final_judgements.judgements(store), final_judgements.verdicts(store)
    keys, controls = (judged.filter(pl.col("control") == flag) for flag in (False, True))
    prefixes = final_judgements.key_prefixes(store.atlas, keys)
    campaign = store.campaign()
    return Results(
        _table(_figure(keys, prefixes)),
        _table(_false_alarms(controls, final_judgements.control_prefixes(store, controls))),
        _table(_agreement(keys, prefixes, cases, 0 if campaign is None else campaign.seed)),
        _table(against_automatic(store.atlas, keys, prefixes)),
        _table((None, name, one) for name, one in majority_calls(cases).items()),
        _authors(keys, controls, cases),
    )


def _table(rows: Iterable[tuple[int | None, str, Estimate]]) -> pl.DataFrame:
    found = [(layer, name, one.value, one.count, one.low, one.high) for layer, name, one in rows]
    return pl.DataFrame(found, schema=_SCHEMA, orient="row")


def _figure(keys: pl.DataFrame, prefixes: pl.DataFrame) -> Iterable[tuple[int | None, str, Estimate]]:
    frames = []
    for layer in sorted(keys["layer"].unique().to_list()):
        here = prefixes.filter(pl.col("layer") == layer).drop("layer")
        frames.append(coverage.count_by_author(here, keys.filter(pl.col("layer") == layer)))
        for name, estimate in coverage.mean_over_authors(frames[-1]).items():
            yield layer, name, estimate
    if frames:
        for name, estimate in coverage.mean_over_authors(pl.concat(frames)).items():
            yield None, name, estimate


def _false_alarms(controls: pl.DataFrame, prefixes: pl.DataFrame) -> Iterable[tuple[None, str, Estimate]]:
    """A control, with all who judged it, is a cluster."""
    some = final_judgements.classes(controls).group_by(KEY, maintain_order=True).agg(
        hits=(pl.col("patterns") > 0).sum(), cases=pl.len()
    )  # fmt: skip
    yield None, "controls_with_pattern", clustered_share(some["hits"], some["cases"])
    marked = final_judgements.marks(prefixes, controls).group_by(KEY, maintain_order=True).agg(
        hits=(pl.col("kind") != "none").sum(), cases=pl.len()
    )  # fmt: skip
    yield None, "controls_covered", clustered_share(marked["hits"], marked["cases"])


def _agreement(
    keys: pl.DataFrame, prefixes: pl.DataFrame, cases: pl.DataFrame, seed: int
) -> Iterable[tuple[None, str, Estimate]]:
    said = final_judgements.marks(prefixes, keys).sort(*KEY, "group", "author")
    marked = said.with_columns(kind=pl.when(pl.col("kind") == "none").then(pl.lit("no")).otherwise(pl.lit("yes")))
    yield None, "key_class", alpha(_units(final_judgements.classes(keys), KEY, (), "class"), seed=seed)
    yield None, "trigger_marked", alpha(_units(marked, KEY, ("group",), "kind"), seed=seed)
    yield None, "trigger_class", alpha(_units(said, KEY, ("group",), "kind"), seed=seed)
    yield None, "composition", alpha(_units(cases, ("case",), (), "verdict"), seed=seed)


def _units(rows: pl.DataFrame, cluster: tuple[str, ...], unit: tuple[str, ...], value: str) -> list[list[Unit]]:
    """The values that were given to each unit, by cluster."""
    found: dict[object, list[Unit]] = {}
    grouped = rows.group_by(*cluster, *unit, maintain_order=True).agg(pl.col(value))
    for row in grouped.iter_rows(named=True):
        found.setdefault(tuple(row[name] for name in cluster), []).append(row[value])
    return list(found.values())


def _authors(keys: pl.DataFrame, controls: pl.DataFrame, cases: pl.DataFrame) -> pl.DataFrame:
    mine, blind = final_judgements.classes(keys), final_judgements.classes(controls)
    rows = []
    for author in sorted({*keys["author"], *controls["author"], *cases["author"]}):
        own, other, said = (frame.filter(pl.col("author") == author) for frame in (mine, blind, cases))
        alarms = (other["patterns"] > 0).sum() / other.height if other.height else None
        rows.append((author, own.height, other.height, said.height, own["patterns"].mean(), alarms))
    schema = {
        "author": pl.String, "keys": pl.Int64, "controls": pl.Int64, "compositions": pl.Int64,
        "patterns_per_key": pl.Float64, "controls_with_pattern": pl.Float64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")
