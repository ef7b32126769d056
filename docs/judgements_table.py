"""The tables of docs/judgements.md: how far a sheet of judgements and the finder agree on the same triggers.

    mnemoscope analyze ATLAS --judgements docs/judgements/smollm2-135m.csv
    python docs/judgements_table.py ATLAS

Counts the judgements of models in the atlas. Alpha is Krippendorff's, between author and finder; keys are resampled.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from mnemoscope.annotate.campaigns.results import alpha
from mnemoscope.annotate.judgements.reading import majority_calls, read_judgements, read_verdicts
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.foundation.formatting import format_interval, format_value
from mnemoscope.foundation.intervals import Estimate, clustered_share, share
from mnemoscope.patterns import coverage

KEY = ("layer", "memory")
KINDS = ("shallow_only", "semantic_only", "both")


def told(estimate: Estimate) -> str:
    ends = format_interval(estimate.low, estimate.high, "share")
    return f"{format_value(estimate.value, 'share')} {ends} ({estimate.count})".replace("\N{NO-BREAK SPACE}", " ")


def marked(atlas: Atlas, judged: pl.DataFrame) -> pl.DataFrame:
    """Layer, memory, group, and the kinds that author and finder give to each prefix of the judged keys."""
    frames = []
    for (layer,), here in judged.group_by("layer", maintain_order=True):
        prefixes = coverage.top_prefixes(atlas, layer).filter(pl.col("memory").is_in(here["memory"].unique().to_list()))
        found = atlas.table("patterns").filter(layer=layer)
        both = coverage.kinds(prefixes, here).join(coverage.kinds(prefixes, found), on=["memory", "group"], suffix="_f")
        frames.append(both.select(pl.lit(layer).alias("layer"), "memory", "group", author="kind", finder="kind_f"))
    return pl.concat(frames)


def classes(rows: pl.DataFrame, who: str) -> pl.Expr:
    """The class of a key: shallow, semantic, both or none, by what its patterns explain."""
    shallow, semantic = (pl.col(who).is_in([f"{one}_only", "both"]).any() for one in ("shallow", "semantic"))
    named = pl.when(shallow & semantic).then(pl.lit("both")).when(shallow).then(pl.lit("shallow"))
    return named.when(semantic).then(pl.lit("semantic")).otherwise(pl.lit("none")).alias(who)


def agreement(rows: pl.DataFrame) -> Iterator[tuple[str, str]]:
    keys = rows.group_by(KEY, maintain_order=True).agg(classes(rows, "author"), classes(rows, "finder"))
    for name, one, other in (
        ("keys where both have a pattern", True, True),
        ("keys where the author alone has one", True, False),
        ("keys where the finder alone has one", False, True),
    ):
        hits = ((keys["author"] != "none") == one) & ((keys["finder"] != "none") == other)
        yield name, told(share(int(hits.sum()), keys.height))
    yield "keys of the same class", told(share(int((keys["author"] == keys["finder"]).sum()), keys.height))
    author, finder = (pl.col(who).is_in(KINDS) for who in ("author", "finder"))
    for name, hits, cases in (
        ("of the prefixes that the finder explains, the author marks", author & finder, finder),
        ("of the prefixes that the author marks, the finder explains", author & finder, author),
        (
            "of those that both mark, the same kind",
            author & finder & (pl.col("author") == pl.col("finder")),
            author & finder,
        ),
    ):
        counts = rows.group_by(KEY).agg(hits.sum().cast(pl.Int64).alias("hits"), cases.sum().cast(pl.Int64).alias("of"))
        yield name, told(clustered_share(counts["hits"], counts["of"]))
    pairs = {"a key's class": [[list(row)] for row in keys.select("author", "finder").rows()]}
    for what, values in (("a prefix's kind", rows), ("whether a prefix is marked", rows.with_columns(author, finder))):
        grouped = values.group_by(KEY, maintain_order=True).agg(pl.concat_list("author", "finder").alias("pairs"))
        pairs[what] = grouped["pairs"].to_list()
    for what, units in pairs.items():
        one = alpha(units)
        yield f"Krippendorff's alpha, {what}", f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"


def covered(rows: pl.DataFrame, who: str, kinds: tuple[str, ...]) -> str:
    counts = rows.group_by(KEY).agg(
        pl.col(who).is_in(kinds).sum().cast(pl.Int64).alias("hits"), of=pl.len().cast(pl.Int64)
    )
    return told(clustered_share(counts["hits"], counts["of"])).rpartition(" ")[0]


def main(folder: str) -> None:
    atlas = open_atlas(folder)
    judged, verdicts = read_judgements(Path(folder)), read_verdicts(Path(folder))
    assert judged is not None
    assert verdicts is not None
    rows = marked(atlas, judged.filter(pl.col("model") & pl.col("sampled")))
    print("| | share, 95 % interval (cases) |\n|---|---|")
    for name, text in agreement(rows):
        print(f"| {name} | {text} |")
    thirds = [atlas.layers[len(atlas.layers) * part // 3 : len(atlas.layers) * (part + 1) // 3] for part in range(3)]
    print(
        "\n| layers | keys | under a pattern: author | finder | shallow: author | finder | semantic: author | finder |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for layers in (*thirds, atlas.layers):
        here = rows.filter(pl.col("layer").is_in(layers))
        kinds = (KINDS, ("shallow_only", "both"), ("semantic_only", "both"))
        cells = [covered(here, who, one) for one in kinds for who in ("author", "finder")]
        print(f"| {layers[0]}-{layers[-1]} | {here.select(KEY).n_unique()} | {' | '.join(cells)} |")
    calls = majority_calls(verdicts.filter("model"))
    print(f"\nCompositions: distant {told(calls['distant'])}, related {told(calls['related'])}")


if __name__ == "__main__":
    main(sys.argv[1])
