"""The most striking memories, and the verdicts of people and models on compositions of the last layer."""

from functools import partial

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import FEATURE_COLUMNS, clear_columns
from mnemoscope.foundation.formatting import format_interval, percent, pluralise
from mnemoscope.questions.question import Answer

FEWEST_PREFIXES = 5
"""Distinct prefixes that a memory's best triggers must have."""


def best_examples(atlas: Atlas, count: int = 10) -> pl.DataFrame:
    """The `count` memories whose values predict best what follows their triggers, the best first.

    score = largest probability of the value at its typical activation (at coefficient 1 if unknown) x share of its best
    triggers that the value's top token follows; a trigger at the end of its sentence counts as not followed. Only
    memories with a clear token, if that is known, whose best triggers have enough distinct prefixes, and one top
    token. Of a model that reads sentences whole the token is the trigger's own, and a memory that was asked counts only
    if it still fires above half where that is masked.

    An encoder alone has none, and the table no columns. Columns: layer, memory, score, max_probability,
    working_probability, agreement (share of the best triggers that the top token follows), prefixes (distinct ones
    among the best triggers), top_token.
    """
    if atlas.manifest.keys_only:
        return pl.DataFrame()
    scores = pl.concat(atlas.each_layer(partial(_scores, atlas)))
    ordered = scores.sort(["score", "layer", "memory"], descending=[True, False, False])
    return ordered.unique("top_token", keep="first", maintain_order=True).head(count)


def _scores(atlas: Atlas, layer: int) -> pl.DataFrame:
    numbers = ("memory", "max_probability", "working_probability")
    values = (
        atlas.table("values", layer=layer, columns=[*numbers, "top_tokens", *FEATURE_COLUMNS])
        .filter(clear_columns()[0].fill_null(value=True))
        .select(*numbers, top_token=pl.col("top_tokens").list.first())
    )
    spoken_of, copies = atlas.reading.spoken_of, []
    if not atlas.reading.causal:
        own = atlas.best_triggers(layer, columns=["memory", "coefficient", "own_coefficient"])
        copies = own.filter(pl.col("own_coefficient") <= pl.col("coefficient") / 2)["memory"].to_list()
    shares = (
        atlas.best_triggers(layer, columns=["memory", "prefix_group", spoken_of])
        .filter(~pl.col("memory").is_in(copies))
        .join(values, on="memory")
        .group_by("memory")
        .agg(
            prefixes=pl.col("prefix_group").n_unique(),
            agreement=(pl.col(spoken_of) == pl.col("top_token")).fill_null(False).mean(),
        )
        .filter(pl.col("prefixes") >= FEWEST_PREFIXES)
    )
    confidence = pl.coalesce("working_probability", "max_probability")
    return (
        values.join(shares, on="memory")
        .with_columns(
            layer=pl.lit(layer, pl.Int32),
            score=(confidence * pl.col("agreement")).fill_null(0.0).cast(pl.Float64),
        )
        .filter(pl.col("score") > 0)
        .select(
            *("layer", "memory", "score", "max_probability", "working_probability"),
            *("agreement", "prefixes", "top_token"),
        )
    )


def judged_sentence(answer: Answer) -> str:
    rows = [answer.total(name) for name in ("composition_distant", "models_composition_distant")]
    said = [
        f"Judged here {row.own.get('judged_by')}: of {pluralise(row.count, 'case')} the new token is unlike both in"
        f" {percent(row.value)} {format_interval(row.low, row.high, 'share')}."
        for row in rows
        if row is not None
    ]
    return " ".join(said) or "Nobody has judged these."
