"""The label of every feature of a memory, made by rule (definitions.md section 2): what its triggers share, and what
its value then promotes. Written with patterns.parquet, as labels.parquet.
"""

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.experts import with_experts
from mnemoscope.atlas.features import FEATURE_COLUMNS, features_of
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.patterns.words import quote

NO_PATTERN = "no clear pattern"
SHARED = 5
"""So many of a feature's best triggers that share their token make it the label where no pattern was found."""

FIRED_AT = 3
"""The trigger tokens that stand in lists for a feature without a pattern."""


def listed_labels(atlas: Atlas, features: Iterable[tuple[MemoryId, int]]) -> dict[tuple[MemoryId, int], str]:
    """What lists of memories say of each feature (memory and sign): its label, and where that tells no pattern, or the
    atlas has no labels, the first different tokens that its best triggers end in. Nothing of one without triggers.
    """
    asked = {(one.layer, atlas.number(one), sign): (one, sign) for one, sign in features if one.layer in atlas.layers}
    labels, layers = dict.fromkeys(asked, NO_PATTERN), sorted({layer for layer, _, _ in asked})
    columns = ["layer", "memory", "sign", "label"]
    if asked and atlas.has("labels"):
        rows = atlas.rows_where("labels", column="layer", ids=layers, columns=columns)
        labels |= {(layer, memory, sign): label for layer, memory, sign, label in rows.iter_rows()}
    said = {asked[place]: labels[place] for place in asked if not labels[place].startswith(NO_PATTERN)}
    for layer in layers:
        places = [place for place in asked if place[0] == layer and asked[place] not in said]
        best = atlas.best_triggers(
            layer, memories=[memory for _, memory, _ in places], columns=["memory", "sign", "rank", "token"], sign=None
        )
        fired: dict[tuple[int, int, int], dict[str, None]] = {place: {} for place in places}
        for memory, sign, _, token in best.sort("rank").iter_rows():
            fired.get((layer, memory, sign), {})[_quoted_token(atlas, token)] = None
        for place, tokens in fired.items():
            if tokens:
                instead = f"fires at {', '.join(list(tokens)[:FIRED_AT])}"
                said[asked[place]] = labels[place].replace(NO_PATTERN, instead, 1)
    return said


def _quoted_token(atlas: Atlas, token: int) -> str:
    text = atlas.vocabulary.texts[token]
    return quote(text.strip(" ") or text)


def kind_below_zero(label: pl.Expr) -> pl.Expr:
    """The kind of pattern of labels of sign -1, which have no rows in patterns.parquet: a shared token is shallow."""
    shallow = pl.when(label.is_not_null()).then(pl.lit("shallow"))
    return pl.when(label.str.starts_with(NO_PATTERN)).then(pl.lit("none")).otherwise(shallow)


def write_labels(atlas: Atlas) -> str:
    """Writes labels.parquet, of an atlas whose patterns are written; returns its path there."""
    first = atlas.table("patterns").filter(pl.col("pattern") == 0)
    patterns = {(layer, memory): text for layer, memory, text in first.select("layer", "memory", "description").rows()}
    rows = [row for layer in atlas.layers for row in _of_layer(atlas, layer, patterns)]
    names = ("layer", "memory", "sign", "label", "promotes")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    kind = TABLES["labels"]
    columns = with_experts(columns, atlas.numberings, None)
    write_table(atlas.local(kind.path()), columns, name=kind.name, provenance=atlas.manifest.provenance)
    return kind.path()


def _of_layer(
    atlas: Atlas, layer: int, patterns: Mapping[tuple[int, int], str]
) -> Iterator[tuple[int, int, int, str, bool | None]]:
    columns = ["memory", "top_tokens", "bottom_tokens", *FEATURE_COLUMNS]
    values = atlas.table("values", layer=layer, columns=columns) if atlas.has("values") else pl.DataFrame()
    features = {
        (row["memory"], one.sign): (one, row[f"{one.end}_tokens"][0])
        for row in values.to_dicts()
        for one in features_of(row)
    }
    for memory, sign, token in _shared_tokens(atlas, layer).iter_rows():
        shared = None if token is None else f"ends in {_quoted_token(atlas, token)}"
        label = (patterns.get((layer, memory)) if sign == 1 else None) or shared or NO_PATTERN
        feature, top = features.get((memory, sign), (None, 0))
        if feature is not None and feature.promotes:
            label = f"{label}; promotes {quote(atlas.vocabulary.texts[top])}"
        yield layer, memory, sign, label, None if feature is None else feature.promotes


def _shared_tokens(atlas: Atlas, layer: int) -> pl.DataFrame:
    """memory, sign, token: of every feature with triggers the most frequent token of its best, where enough share it; a
    prefix counts once, and of equally frequent tokens the one that comes first.
    """
    columns = ["memory", "sign", "rank", "token", "prefix_group"]
    best = atlas.table("triggers", layer=layer, columns=columns).filter(pl.col("rank") < BEST_TRIGGERS)
    prefixes = best.sort("rank").unique(["memory", "sign", "prefix_group"], keep="first", maintain_order=True)
    counts = prefixes.group_by("memory", "sign", "token").agg(count=pl.len(), first=pl.col("rank").min())
    ordered = counts.sort("count", "first", descending=[True, False])
    most = ordered.unique(["memory", "sign"], keep="first", maintain_order=True)
    shared = pl.when(pl.col("count") >= SHARED).then(pl.col("token"))
    return most.select("memory", "sign", shared.alias("token")).sort(pl.col("memory"), -pl.col("sign"))
