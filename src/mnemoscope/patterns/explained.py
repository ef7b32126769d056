"""The numbers of Figure 2: of each memory the prefixes by kind and the patterns, and their estimates over memories.

Patterns come from anywhere: found from the tables, or judged by people, each author then being asked alone. Reads
nothing. Paper, section 3.2.
"""

import polars as pl

from mnemoscope.intervals import NOTHING, Estimate, mean, share
from mnemoscope.patterns import coverage


def per_memory(prefixes: pl.DataFrame, patterns: pl.DataFrame) -> pl.DataFrame:
    """The counts of prefixes by kind, and of patterns, of every memory with a positive trigger."""
    number = patterns.group_by("memory").agg(patterns=pl.len().cast(pl.Int64))
    rows = coverage.counts(coverage.kinds(prefixes, patterns)).join(
        number, on="memory", how="left", maintain_order="left"
    )
    return rows.with_columns(pl.col("patterns").fill_null(0))


def estimates(rows: pl.DataFrame) -> dict[str, Estimate]:
    """The shares of prefixes by kind, the share of keys with a pattern, and patterns per key, over rows of memories."""
    with_pattern = int((rows["patterns"] > 0).sum())
    return coverage.shares(rows) | {
        "keys_with_pattern": share(with_pattern, rows.height),
        "patterns_per_key": mean(rows["patterns"]),
    }


def by_author(prefixes: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
    """What `per_memory` gives, for every memory that an author judged; with the author's name."""
    frames = []
    for (author,), rows in judged.sort("author").group_by("author", maintain_order=True):
        memories = rows["memory"].unique().to_list()
        patterns = rows.filter(pl.col("kind") != "none")
        own = per_memory(prefixes.filter(pl.col("memory").is_in(memories)), patterns)
        frames.append(own.with_columns(author=pl.lit(str(author))))
    empty = per_memory(prefixes.clear(), judged.clear()).with_columns(author=pl.lit("", pl.String))
    return pl.concat([empty, *frames])


def mean_over_authors(rows: pl.DataFrame) -> dict[str, Estimate]:
    """The mean over authors of each one's estimate; counts are added up.

    The interval is as wide as that of all judgements together, around the mean; a judged memory is a cluster.
    """
    single = [estimates(own) for _, own in rows.group_by("author", maintain_order=True)]
    found = estimates(rows)
    for name, pooled in found.items():
        values = [one[name].value for one in single]
        if pooled.value is None or pooled.low is None or pooled.high is None:
            found[name] = pooled if pooled.value is not None else NOTHING
            continue
        known = [value for value in values if value is not None]
        value = sum(known) / len(known)
        shift = value - pooled.value
        low, high = pooled.low + shift, pooled.high + shift
        if name != "patterns_per_key":
            low, high = max(0.0, low), min(1.0, high)
        found[name] = Estimate(value, pooled.count, low, high)
    return found
