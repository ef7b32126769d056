"""People against automatic patterns: which prefixes of the judged keys both explain, and whether they call them alike.

Automatic patterns are those of patterns.parquet. An author's word on a key counts as one comparison; intervals take a
key, with all its prefixes and authors, as a cluster.
"""

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.schema import TABLES
from mnemoscope.campaigns.final_judgements import KEY, class_of, classes, marks
from mnemoscope.intervals import Estimate, clustered_share
from mnemoscope.patterns import coverage

Rows = list[tuple[int | None, str, Estimate]]


def against_automatic(atlas: Atlas, judged: pl.DataFrame, prefixes: pl.DataFrame) -> Rows:
    """By layer and in all, `precision`: of the prefixes that automatic patterns explain, the share that people mark;
    `recall`: of those that people mark, the share explained; `same_kind`: of those that both explain, the share with
    the same kind; `same_class`: of keys, the share with the same class. Nothing where there are no patterns.
    """
    if judged.is_empty() or not (atlas.path / TABLES["patterns"].path()).is_file():
        return []
    patterns = atlas.table("patterns")
    people = marks(prefixes, judged)
    both = people.join(_automatic_kinds(patterns, prefixes), on=[*KEY, "group"], how="left", maintain_order="left")
    marked, explained = pl.col("kind") != "none", pl.col("automatic") != "none"
    keyed = classes(judged).join(_automatic_classes(patterns), on=KEY, how="left", maintain_order="left")
    same = pl.col("class") == pl.col("automatic").fill_null("none")
    found: Rows = []
    for layer in [*sorted(judged["layer"].unique().to_list()), None]:
        rows, keys = (frame if layer is None else frame.filter(pl.col("layer") == layer) for frame in (both, keyed))
        alike = pl.col("kind") == pl.col("automatic")
        found += [
            (layer, "precision", _share(rows, marked & explained, explained)),
            (layer, "recall", _share(rows, marked & explained, marked)),
            (layer, "same_kind", _share(rows, marked & explained & alike, marked & explained)),
            (layer, "same_class", _share(keys, same, pl.lit(True))),
        ]
    return found


def _share(rows: pl.DataFrame, hits: pl.Expr, cases: pl.Expr) -> Estimate:
    counted = rows.with_columns(hit=hits.cast(pl.Int64), case=cases.cast(pl.Int64))
    keys = counted.group_by(KEY, maintain_order=True).agg(pl.col("hit", "case").sum())
    return clustered_share(keys["hit"], keys["case"])


def _automatic_kinds(patterns: pl.DataFrame, prefixes: pl.DataFrame) -> pl.DataFrame:
    """What automatic patterns make of each prefix: layer, memory, group, automatic."""
    frames = []
    for (layer,), here in prefixes.group_by("layer", maintain_order=True):
        found = coverage.kinds(here.drop("layer"), patterns.filter(pl.col("layer") == layer))
        frames.append(found.select(pl.lit(layer, pl.Int16).alias("layer"), "memory", "group", automatic="kind"))
    return pl.concat(frames)


def _automatic_classes(patterns: pl.DataFrame) -> pl.DataFrame:
    kinds = {kind: (pl.col("kind") == kind).any() for kind in ("shallow", "semantic")}
    return patterns.group_by(KEY).agg(**kinds).select(*KEY, automatic=class_of())
