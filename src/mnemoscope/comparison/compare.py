"""`compare`: what changed between atlases of one text, layer by layer and feature by feature. Runs no model.

Features are compared by their ids in the layers whose memories are numbered alike, beside a control: the second atlas's
memories permuted within the layer. Atlases that both have the table `samples` are compared by correlation, too.
"""

import os
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.comparison.comparable import check_comparable
from mnemoscope.comparison.correlation import excess_correlations
from mnemoscope.comparison.features import LayerFeatures, chance_of, compare_features, layer_numbers
from mnemoscope.comparison.result import Comparison
from mnemoscope.errors import AtlasesDiffer, OptionError
from mnemoscope.foundation.progress import Progress, ignore_progress

_TOKENS = 5
"""Tokens that a feature promotes, before and after."""
_KINDS: dict[str, Any] = {
    "memory": pl.String, "sign": pl.Int8, "kind": pl.String, "jaccard": pl.Float64, "rate_before": pl.Float64,
    "rate_after": pl.Float64, "tokens_before": pl.List(pl.String), "tokens_after": pl.List(pl.String),
}  # fmt: skip
"""The columns of changed features."""


def compare(
    atlas: Atlas | str | os.PathLike[str],
    other: Atlas | str | os.PathLike[str],
    *more: Atlas | str | os.PathLike[str],
    models: Sequence[Any] | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Comparison:
    """Compares two or more atlases of one text; of more than two each with the next.

    `models`, loaded or by name, one for each atlas, add cosines of keys and values. Raises AtlasesDiffer, OptionError,
    AtlasUnfinished for a part, ModelDiffers, and what opening an atlas and loading a model raise.
    """
    atlases = [one if isinstance(one, Atlas) else open_atlas(Path(one)) for one in (atlas, other, *more)]
    notes = [check_comparable(*pair) for pair in pairwise(atlases)]
    if models is not None:
        if len(models) != len(atlases):
            raise OptionError(f"--models names {len(models)} models for {len(atlases)} atlases; name one for each")
        from mnemoscope.comparison.vectors import open_models

        models = open_models(models, atlases)
    pairs = [
        {"first": one.path.name, "second": second.path.name, "note": notes[number]}
        | _compare_pair(one, second, models and models[number : number + 2], seed=seed, progress=progress)
        for number, (one, second) in enumerate(pairwise(atlases))
    ]
    made_by = {
        "models": [one.manifest.model.fingerprint for one in atlases],
        "atlases": [one.manifest_hash for one in atlases],
        "package": version("mnemoscope"), "options": {"models": models is not None}, "seed": seed,
    }  # fmt: skip
    return Comparison(pairs, made_by, atlases[0])


def _compare_pair(
    first: Atlas, second: Atlas, models: Sequence[Any] | None, *, seed: int, progress: Progress
) -> dict[str, pl.DataFrame]:
    common = [one for one in first.layers if one in second.layers and first.numbering(one) == second.numbering(one)]
    sampled = first.has("samples") and second.has("samples")
    if not common and not sampled:
        raise AtlasesDiffer(
            f"{first.path} and {second.path} have no layer of the same memories; run `mnemoscope extend ATLAS samples` "
            "on both to compare them by correlation"
        )
    layers: list[dict[str, Any]] = []
    changed = [pl.DataFrame(schema=_KINDS)]
    for layer in common:
        progress("comparing", len(layers), len(common), "layers")
        generator = np.random.default_rng((seed, 11, layer))
        one, other = LayerFeatures.read(first, layer), LayerFeatures.read(second, layer)
        chance, cycle = chance_of(one, other, generator), generator.permutation(one.activity.height)
        others = np.empty_like(cycle)
        others[cycle] = np.roll(cycle, 1)  # no memory stays
        features = compare_features(one, other, chance=chance)
        found = layer_numbers(features), layer_numbers(compare_features(one, other.permute(others), chance=chance))
        if models is not None:
            from mnemoscope.comparison.vectors import mean_cosines

            for numbers, order in zip(found, (np.sort(cycle), others), strict=True):
                numbers |= mean_cosines(models, layer, order)
        layers.append({
            "layer": layer, "memories": len(cycle), **found[0], "not_asked": int((~features["asked"]).sum()),
            **{f"control_{name}": number for name, number in found[1].items()},
        })  # fmt: skip
        changed.append(_describe(first, second, layer, features.filter(pl.col("kind").is_not_null())))
    progress("comparing", len(common), len(common), "layers")
    frames = {"layers": pl.DataFrame(layers, infer_schema_length=None), "changed": pl.concat(changed)}
    if sampled:
        frames["matches"] = excess_correlations(first, second, seed=seed, progress=progress)
        means = (
            frames["matches"]
            .group_by("layer")
            .agg(pl.col("excess", "universal").mean(), left_out=pl.col("excess").null_count())
        )
        frames["layers"] = frames["layers"].join(means, on="layer", how="full", coalesce=True) if common else means
    return frames | {"layers": frames["layers"].sort("layer")}


def _describe(first: Atlas, second: Atlas, layer: int, features: pl.DataFrame) -> pl.DataFrame:
    """The features with their names and the tokens that they promote."""
    features = features.sort("memory", "sign", descending=[False, True])
    texts: dict[str, Any] = {"memory": [str(first.name(layer, number)) for number in features["memory"]]}
    for name, atlas in {"tokens_before": first, "tokens_after": second}.items():
        values = atlas.table("values", layer=layer, columns=["memory", "top_tokens", "bottom_tokens"]).sort("memory")
        tokens = {1: values["top_tokens"], -1: values["bottom_tokens"]}
        places = features.select("sign", "memory").iter_rows()
        texts[name] = [atlas.token_text(tokens[sign][memory][:_TOKENS].to_list()) for sign, memory in places]
    return features.with_columns(pl.Series(name, each, _KINDS[name]) for name, each in texts.items()).select(*_KINDS)
