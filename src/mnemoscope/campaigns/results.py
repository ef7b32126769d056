"""What people's judgements add up to: Figure 2 from people, false alarms, agreement, people against patterns.

Only finished items of the campaign count. The tables have the form of every answer (layer, name, value, count, low,
high); the numbers of Figure 2 are those of the question key_patterns, with people in place of automatic patterns.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl
from sqlalchemy import Connection, text

from mnemoscope.atlas import Atlas
from mnemoscope.campaigns.agreement import KEY, Numbers, against_automatic, alpha, class_of, share_of_keys, units
from mnemoscope.campaigns.store import Store
from mnemoscope.campaigns.views import read_judgements
from mnemoscope.intervals import Estimate
from mnemoscope.judgements.reading import ALL_VERDICTS, final_verdicts, majority_calls
from mnemoscope.patterns import coverage

_SCHEMA = {
    "layer": pl.Int16, "name": pl.String, "value": pl.Float64, "count": pl.Int64, "low": pl.Float64, "high": pl.Float64,
}  # fmt: skip
_PREFIXES = {"layer": pl.Int16, "memory": pl.Int32, "rank": pl.Int16, "group": pl.Int16}


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
    with store.database.reading() as connection:
        judged = read_judgements(connection, store.database.name).filter(pl.col("sampled"))
        cases = final_verdicts([tuple(row) for row in connection.execute(text(ALL_VERDICTS))])
        shown = _control_prefixes(connection)
    keys, controls = (judged.filter(pl.col("control") == flag) for flag in (False, True))
    prefixes = _key_prefixes(store.atlas, keys)
    campaign = store.campaign()
    seed = 0 if campaign is None else campaign.seed
    people, called, blind = _marks(prefixes, keys), _classes(keys), _classes(controls)
    marked = _marks(shown.join(controls.select(KEY).unique(), on=KEY, how="semi"), controls)
    false_alarms = (
        (None, "controls_with_pattern", share_of_keys(blind, pl.col("patterns") > 0)),
        (None, "controls_covered", share_of_keys(marked, pl.col("kind") != "none")),
    )
    return Results(
        _table(_figure(keys, prefixes)),
        _table(false_alarms),
        _table(_agreement(people, called, cases, seed)),
        _table(against_automatic(store.atlas, prefixes, people, called)),
        _table((None, name, one) for name, one in majority_calls(cases).items()),
        _authors(called, blind, cases),
    )


def _key_prefixes(atlas: Atlas, judged: pl.DataFrame) -> pl.DataFrame:
    """The top prefixes of every memory in `judged`: layer, memory, rank, group; raises AtlasDamaged."""
    frames = [pl.DataFrame(schema=_PREFIXES)]
    for (layer,), here in judged.sort("layer").group_by("layer", maintain_order=True):
        rows = atlas.best_triggers(layer, memories=here["memory"].unique().to_list())
        frames.append(rows.select(pl.lit(layer, pl.Int16).alias("layer"), "memory", "rank", group="prefix_group"))
    return pl.concat(frames)


def _control_prefixes(connection: Connection) -> pl.DataFrame:
    """What every control shows, in the form of `_key_prefixes`; `memory` is its number."""
    asked = text("SELECT layer, memory, content FROM items WHERE kind = 'control' ORDER BY memory")
    sizes = [(row.layer, row.memory, len(json.loads(row.content))) for row in connection.execute(asked)]
    rows = [(layer, memory, rank, rank) for layer, memory, size in sizes for rank in range(size)]
    return pl.DataFrame(rows, schema=_PREFIXES, orient="row")


def _marks(prefixes: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """What each author who judged a key makes of each of its prefixes: layer, memory, group, author, kind.

    `kind` is one of coverage.KINDS; `none` where no pattern of the author names the prefix.
    """
    schema = {"layer": pl.Int16, "memory": pl.Int32, "group": pl.Int16, "kind": pl.String, "author": pl.String}
    frames = [pl.DataFrame(schema=schema)]
    for (layer, author), rows in judged.group_by("layer", "author", maintain_order=True):
        here = prefixes.filter((pl.col("layer") == layer) & pl.col("memory").is_in(rows["memory"].unique().to_list()))
        found = coverage.kinds(here.drop("layer"), rows.filter(pl.col("kind") != "none"))
        named = found.with_columns(pl.lit(layer, pl.Int16).alias("layer"), pl.lit(author, pl.String).alias("author"))
        frames.append(named.select(*schema))
    return pl.concat(frames)


def _classes(judged: pl.DataFrame) -> pl.DataFrame:
    """What each author calls each key: layer, memory, author, patterns (how many), class (as a kind, or none).

    A key with shallow and semantic patterns is both.
    """
    shallow, semantic = (pl.col("kind").is_in([kind, "both"]).any() for kind in ("shallow", "semantic"))
    rows = judged.group_by(*KEY, "author").agg(
        patterns=(pl.col("kind") != "none").sum().cast(pl.Int64), shallow=shallow, semantic=semantic
    )
    return rows.select(*KEY, "author", "patterns", **{"class": class_of()}).sort(*KEY, "author")


def _table(rows: Iterable[tuple[int | None, str, Estimate]]) -> pl.DataFrame:
    found = [(layer, name, one.value, one.count, one.low, one.high) for layer, name, one in rows]
    return pl.DataFrame(found, schema=_SCHEMA, orient="row")


def _figure(keys: pl.DataFrame, prefixes: pl.DataFrame) -> Numbers:
    frames = []
    for layer in sorted(keys["layer"].unique().to_list()):
        here = prefixes.filter(pl.col("layer") == layer).drop("layer")
        frames.append(coverage.count_by_author(here, keys.filter(pl.col("layer") == layer)))
        for name, estimate in coverage.mean_over_authors(frames[-1]).items():
            yield layer, name, estimate
    if frames:
        for name, estimate in coverage.mean_over_authors(pl.concat(frames)).items():
            yield None, name, estimate


def _agreement(people: pl.DataFrame, classes: pl.DataFrame, cases: pl.DataFrame, seed: int) -> Numbers:
    people = people.sort(*KEY, "group", "author")
    marked = people.with_columns(kind=pl.when(pl.col("kind") == "none").then(pl.lit("no")).otherwise(pl.lit("yes")))
    yield None, "key_class", alpha(units(classes, KEY, (), "class"), seed=seed)
    yield None, "trigger_marked", alpha(units(marked, KEY, ("group",), "kind"), seed=seed)
    yield None, "trigger_class", alpha(units(people, KEY, ("group",), "kind"), seed=seed)
    yield None, "composition", alpha(units(cases, ("case",), (), "verdict"), seed=seed)


def _authors(keys: pl.DataFrame, controls: pl.DataFrame, cases: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for author in sorted({*keys["author"], *controls["author"], *cases["author"]}):
        own, blind, said = (frame.filter(pl.col("author") == author) for frame in (keys, controls, cases))
        alarms = (blind["patterns"] > 0).sum() / blind.height if blind.height else None
        rows.append((author, own.height, blind.height, said.height, own["patterns"].mean(), alarms))
    schema = {
        "author": pl.String, "keys": pl.Int64, "controls": pl.Int64, "compositions": pl.Int64,
        "patterns_per_key": pl.Float64, "controls_with_pattern": pl.Float64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")
