"""Shares of a memory's top 25 prefixes that its patterns explain, by kind of pattern (paper, section 3.2, Figure 2).

Patterns come from the tables, or from people's judgements, each author separately. Triggers with the same prefix count
once; the prefix is explained if one of them is.
"""

from collections.abc import Mapping

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import Estimate, clustered_share, mean, share
from mnemoscope.foundation.near_duplicates import COMPARED, fold_triggers

PREFIX_KINDS = ("shallow_only", "semantic_only", "both", "none")
"""Every prefix is of exactly one kind."""
SHARES: Mapping[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in PREFIX_KINDS},
    "covered": ("shallow_only", "semantic_only", "both"),
    "shallow": ("shallow_only", "both"),
    "semantic": ("semantic_only", "both"),
}


def top_prefixes(atlas: Atlas, layer: int) -> pl.DataFrame:
    """The top 25 positive triggers of every memory of a layer: memory, rank, group."""
    return atlas.best_triggers(layer, columns=["memory", "rank", "prefix_group"]).rename({"prefix_group": "group"})


def kinds(prefixes: pl.DataFrame, patterns: pl.DataFrame) -> pl.DataFrame:
    """One row (memory, group, kind) per group of `prefixes`. `patterns` has memory, triggers (ranks) and kind: shallow,
    semantic or both; a pattern of another kind explains nothing.
    """
    named = patterns.select("memory", "kind", rank="triggers").explode("rank", empty_as_null=False)
    named = named.with_columns(pl.col("rank").cast(pl.Int16)).join(prefixes, on=["memory", "rank"])
    explained = named.group_by("memory", "group").agg(
        shallow=pl.col("kind").is_in(["shallow", "both"]).any(),
        semantic=pl.col("kind").is_in(["semantic", "both"]).any(),
    )
    rows = prefixes.select("memory", "group").unique().join(explained, on=["memory", "group"], how="left")
    kind = kind_of(*(pl.col(name).fill_null(False) for name in ("shallow", "semantic")), alone="_only")
    return rows.select("memory", "group", kind=kind).sort("memory", "group")


def kind_of(shallow: pl.Expr, semantic: pl.Expr, *, alone: str = "") -> pl.Expr:
    """both, shallow, semantic or none; the middle two end in `alone`."""
    one = pl.when(shallow).then(pl.lit(f"shallow{alone}")).when(semantic).then(pl.lit(f"semantic{alone}"))
    return pl.when(shallow & semantic).then(pl.lit("both")).otherwise(one.otherwise(pl.lit("none")))


def counts(prefixes: pl.DataFrame) -> pl.DataFrame:
    """Per memory the number of its prefixes of each kind, and of all (`groups`)."""
    each = [(pl.col("kind") == kind).sum().cast(pl.Int64).alias(kind) for kind in PREFIX_KINDS]
    return prefixes.group_by("memory").agg(*each, groups=pl.len().cast(pl.Int64)).sort("memory")


def count_folds(atlas: Atlas, layer: int, prefixes: pl.DataFrame, patterns: pl.DataFrame) -> pl.DataFrame:
    """`counts` of the `top_prefixes` that are the first of their near-duplicates (definitions.md section 3)."""
    rows = atlas.best_triggers(layer, columns=["memory", "rank", "prefix_group", "sentence", "position"])
    rows = rows.filter(pl.col("rank") == pl.col("prefix_group"))
    tokens = atlas.sentences(rows["sentence"].unique().to_list(), columns=["sentence", "tokens"])
    rows = rows.join(tokens, on="sentence", maintain_order="left")
    read = pl.col("position") + 1 if atlas.reading.causal else pl.col("tokens").list.len()
    ends = rows.select(pl.col("tokens").list.head(read).list.tail(COMPARED)).to_series().to_list()
    folds = fold_triggers(rows["memory"].to_list(), rows["rank"].to_list(), ends)
    firsts = rows.filter(pl.col("rank") == pl.Series(folds)).select("memory", group="prefix_group")
    return counts(kinds(prefixes, patterns).join(firsts, on=["memory", "group"], how="semi"))


def shares(rows: pl.DataFrame) -> dict[str, Estimate]:
    """The shares of prefixes over all memories of `counts`; intervals take a memory's prefixes as a cluster."""
    each, groups = {kind: rows[kind].to_numpy() for kind in PREFIX_KINDS}, rows["groups"].to_numpy()
    return {name: clustered_share(sum(each[kind] for kind in parts), groups) for name, parts in SHARES.items()}


def layer_shares(atlas: Atlas, layer: int, patterns: pl.DataFrame) -> dict[str, Estimate]:
    return shares(counts(kinds(top_prefixes(atlas, layer), patterns.filter(pl.col("layer") == layer))))


def count_per_memory(prefixes: pl.DataFrame, patterns: pl.DataFrame) -> pl.DataFrame:
    """Per memory with a positive trigger: the number of its prefixes of each kind, and of its patterns."""
    number = patterns.group_by("memory").agg(patterns=pl.len().cast(pl.Int64))
    rows = counts(kinds(prefixes, patterns)).join(number, on="memory", how="left", maintain_order="left")
    return rows.with_columns(pl.col("patterns").fill_null(0))


def key_estimates(rows: pl.DataFrame) -> dict[str, Estimate]:
    with_pattern = int((rows["patterns"] > 0).sum())
    return shares(rows) | {
        "keys_with_pattern": share(with_pattern, rows.height),
        "patterns_per_key": mean(rows["patterns"]),
    }


def count_by_author(prefixes: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """`count_per_memory` for every memory that an author judged, with the author's name."""
    frames = []
    for (author,), rows in judged.sort("author").group_by("author", maintain_order=True):
        memories = rows["memory"].unique().to_list()
        patterns = rows.filter(pl.col("kind") != "none")
        counted = count_per_memory(prefixes.filter(pl.col("memory").is_in(memories)), patterns)
        frames.append(counted.with_columns(author=pl.lit(str(author))))
    empty = count_per_memory(prefixes.clear(), judged.clear()).with_columns(author=pl.lit("", pl.String))
    return pl.concat([empty, *frames])


def mean_over_authors(rows: pl.DataFrame) -> dict[str, Estimate]:
    """The mean of the authors' estimates; counts are summed. The interval is that of the pooled judgements, shifted to
    the mean; a judged memory is a cluster.
    """
    single = [key_estimates(judged) for _, judged in rows.group_by("author", maintain_order=True)]
    estimates = key_estimates(rows)
    for name, pooled in estimates.items():
        if pooled.value is None or pooled.low is None or pooled.high is None:
            continue
        values = [value for one in single if (value := one[name].value) is not None]
        value = sum(values) / len(values)
        low, high = (end + (value - pooled.value) for end in (pooled.low, pooled.high))
        if name != "patterns_per_key":
            low, high = max(0.0, low), min(1.0, high)
        estimates[name] = Estimate(value, pooled.count, low, high)
    return estimates
