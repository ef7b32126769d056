"""The judgements that count, as tables: what each author said of each key's prefixes, of each key, of each composition.

Only finished items of the campaign count. Reads the database and the triggers of judged memories; estimates nothing.
"""

import json

import polars as pl
from sqlalchemy import text

from mnemoscope.atlas import Atlas
from mnemoscope.campaigns.store import Store
from mnemoscope.judgements.reading import WITH_ITEMS, final_judgements
from mnemoscope.judgements.verdicts import ALL_VERDICTS, final_verdicts
from mnemoscope.patterns import coverage

KEY = ("layer", "memory")
_PREFIXES = {"layer": pl.Int16, "memory": pl.Int32, "rank": pl.Int16, "group": pl.Int16}


def judgements(store: Store) -> pl.DataFrame:
    """The campaign's judgements that count, controls among them; the columns of judgements/reading.py."""
    with store.database.reading() as connection:
        rows = [tuple(row) for row in connection.execute(text(WITH_ITEMS))]
    return final_judgements(rows, store.database.name).filter(pl.col("sampled"))


def verdicts(store: Store) -> pl.DataFrame:
    """The latest verdict of each author on each composition: case (its prefix), author, verdict."""
    with store.database.reading() as connection:
        return final_verdicts([tuple(row) for row in connection.execute(text(ALL_VERDICTS))])


def key_prefixes(atlas: Atlas, judged: pl.DataFrame) -> pl.DataFrame:
    """The top prefixes of every memory in `judged`: layer, memory, rank, group; raises AtlasDamaged."""
    frames = [pl.DataFrame(schema=_PREFIXES)]
    for layer in sorted(judged["layer"].unique().to_list()):
        here = judged.filter(pl.col("layer") == layer)["memory"].unique().to_list()
        rows = atlas.tables.having("triggers", layer, column="memory", ids=here)
        rows = rows.filter((pl.col("sign") == 1) & (pl.col("rank") < coverage.TOP))
        frames.append(rows.select(pl.lit(layer, pl.Int16).alias("layer"), "memory", "rank", group="prefix_group"))
    return pl.concat(frames)


def control_prefixes(store: Store, judged: pl.DataFrame) -> pl.DataFrame:
    """What every control in `judged` shows, in the form of `key_prefixes`; `memory` is its number."""
    asked = text("SELECT layer, memory, content FROM items WHERE kind = 'control' ORDER BY memory")
    with store.database.reading() as connection:
        sizes = [(row.layer, row.memory, len(json.loads(row.content))) for row in connection.execute(asked)]
    rows = [(layer, memory, rank, rank) for layer, memory, size in sizes for rank in range(size)]
    found = pl.DataFrame(rows, schema=_PREFIXES, orient="row")
    return found.join(judged.select(KEY).unique(), on=KEY, how="semi")


def marks(prefixes: pl.DataFrame, judged: pl.DataFrame) -> pl.DataFrame:
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


def classes(judged: pl.DataFrame) -> pl.DataFrame:
    """What each author calls each key: layer, memory, author, patterns (how many), class (as a kind, or none).

    A key with shallow and semantic patterns is both.
    """
    shallow, semantic = (pl.col("kind").is_in([kind, "both"]).any() for kind in ("shallow", "semantic"))
    rows = judged.group_by(*KEY, "author").agg(
        patterns=(pl.col("kind") != "none").sum().cast(pl.Int64), shallow=shallow, semantic=semantic
    )
    return rows.select(*KEY, "author", "patterns", **{"class": class_of()}).sort(*KEY, "author")


def class_of() -> pl.Expr:
    """The class that the columns `shallow` and `semantic` make."""
    shallow, semantic = pl.col("shallow"), pl.col("semantic")
    return (
        pl.when(shallow & semantic).then(pl.lit("both"))
        .when(shallow).then(pl.lit("shallow"))
        .when(semantic).then(pl.lit("semantic"))
        .otherwise(pl.lit("none"))
    )  # fmt: skip
