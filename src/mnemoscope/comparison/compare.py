"""`compare`: what changed between atlases of one text, layer by layer and feature by feature. Runs no model.

Features are compared by their ids in the layers whose memories are numbered alike, beside a control: the second atlas's
memories permuted within the layer. Atlases that both have the table `samples` are compared by correlation, too.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.comparison.comparable import check_comparable
from mnemoscope.comparison.correlation import excess_correlations
from mnemoscope.comparison.features import LayerFeatures, compare_features, jaccard, jaccard_by_chance
from mnemoscope.comparison.result import AtlasComparison
from mnemoscope.errors import AtlasesDiffer, OptionError
from mnemoscope.foundation.origin import made_by
from mnemoscope.foundation.progress import Progress, report_to

KINDS = ("born", "died", "repurposed")
_TOKENS = 5
"""Tokens that a feature promotes, before and after."""


def compare(
    atlas: Atlas | str | os.PathLike[str],
    other: Atlas | str | os.PathLike[str],
    *more: Atlas | str | os.PathLike[str],
    models: Sequence[Any] | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> AtlasComparison:
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
    with report_to(progress) as report:
        pairs: list[Any] = [
            {"first": one.path.name, "second": two.path.name, "note": notes[number]}
            | _compare_pair(one, two, models and models[number : number + 2], seed=seed, progress=report)
            for number, (one, two) in enumerate(pairwise(atlases))
        ]
    origin = made_by(
        model=[one.manifest.model.fingerprint for one in atlases],
        atlas=[one.manifest_hash for one in atlases],
        options={"models": models is not None},
        seed=seed,
    )
    return AtlasComparison(pairs, _all_rows(pairs, "layers"), _all_rows(pairs, "changed"), origin, atlases[0])


def _all_rows(pairs: Sequence[dict[str, Any]], name: str) -> pl.DataFrame:
    keys = ("first", "second") if pairs[1:] else ()
    frames: list[pl.DataFrame] = [
        pair[name].with_columns(pl.lit(pair[key]).alias(key) for key in keys) for pair in pairs
    ]
    return pl.concat(frames, how="diagonal_relaxed")


def _compare_pair(
    first: Atlas, second: Atlas, models: Sequence[Any] | None, *, seed: int, progress: Progress
) -> dict[str, pl.DataFrame]:
    common = [one for one in first.layers if one in second.layers and first.numbering(one) == second.numbering(one)]
    matches = None
    if first.has("samples") and second.has("samples"):
        matches = excess_correlations(first, second, seed=seed, progress=progress)
    elif not common:
        raise AtlasesDiffer(
            f"{first.path} and {second.path} have no layer of the same memories; run `mnemoscope extend ATLAS samples` "
            "on both to compare them by correlation"
        )
    layers: list[dict[str, Any]] = []
    changed = []
    for layer in first.layers:
        progress("comparing", len(layers), len(first.layers), "layers")
        row: dict[str, Any] = {"layer": layer, "memories": first.memories(layer)}
        if layer in common:
            numbers, features = _compare_layer(first, second, layer, models, np.random.default_rng((seed, 11, layer)))
            row |= numbers
            changed.append(_describe(first, second, layer, features))
        if matches is not None:
            own = matches.filter(pl.col("layer") == layer)
            row |= {name: own[name].mean() for name in ("excess", "universal")}
            row["left_out"] = row["memories"] - len(own)
        layers.append(row)
    progress("comparing", len(layers), len(first.layers), "layers")
    every = pl.concat(changed) if changed else pl.DataFrame()
    frames = {"layers": pl.DataFrame(layers, infer_schema_length=None), "changed": every}
    return frames if matches is None else frames | {"matches": matches}


def _compare_layer(
    first: Atlas, second: Atlas, layer: int, models: Sequence[Any] | None, generator: np.random.Generator
) -> tuple[dict[str, Any], pl.DataFrame]:
    """The numbers of a layer, and the features that changed."""
    one, other = LayerFeatures.read(first, layer), LayerFeatures.read(second, layer)
    features = compare_features(one, other, chance=jaccard_by_chance(one, other, generator))
    cycle = generator.permutation(one.activity.height)
    others = np.empty_like(cycle)
    others[cycle] = np.roll(cycle, 1)  # no memory stays
    control = pl.Series(jaccard(one.places, other.places[:, others]).ravel()).drop_nans().mean()
    rates, kinds = features["rate_after"] - features["rate_before"], features["kind"].to_list()
    numbers = {"jaccard": features["jaccard"].mean(), "control_jaccard": control, "rate_change": rates.abs().mean()}
    numbers |= {kind: kinds.count(kind) for kind in KINDS} | {"not_asked": features["asked"].to_list().count(False)}
    if models is not None:
        from mnemoscope.comparison.vectors import mean_cosines

        numbers |= mean_cosines(models, layer, np.arange(len(others)))
        numbers |= {f"control_{name}": value for name, value in mean_cosines(models, layer, others).items()}
    return numbers, features.filter(pl.col("kind").is_not_null()).drop("asked").sort("memory", -pl.col("sign"))


def _describe(first: Atlas, second: Atlas, layer: int, features: pl.DataFrame) -> pl.DataFrame:
    """The features with their names and the tokens that they promote."""
    texts = {}
    for name, atlas in {"tokens_before": first, "tokens_after": second}.items():
        values = atlas.table("values", layer=layer, columns=["memory", "top_tokens", "bottom_tokens"]).sort("memory")
        tokens = {1: values["top_tokens"], -1: values["bottom_tokens"]}
        places = features.select("sign", "memory").iter_rows()
        each = [atlas.token_text(tokens[sign][memory][:_TOKENS].to_list()) for sign, memory in places]
        texts[name] = pl.Series(each, dtype=pl.List(pl.String))
    names = [str(first.name(layer, number)) for number in features["memory"]]
    return features.with_columns(memory=pl.Series(names, dtype=pl.String), **texts)
