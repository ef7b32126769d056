"""`compare`: what changed between atlases of one text, layer by layer and feature by feature. Runs no model.

Features are compared by their ids in the layers whose memories are numbered alike, beside a control: the second atlas's
memories permuted within the layer. Atlases that both have the table `samples` are compared by correlation, too.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.features import sampled_beyond, strong_edge
from mnemoscope.comparison.result import AtlasComparison
from mnemoscope.errors import AtlasesDiffer, AtlasUnfinished, OptionError
from mnemoscope.foundation.intervals import Z
from mnemoscope.foundation.options.mining_options import MiningOptions
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

    Raises AtlasesDiffer, OptionError, AtlasUnfinished for a part, ModelDiffers, and what opening an atlas and loading a
    model raise.

    Args:
        atlas: An atlas, or its folder.
        other: The second atlas, or its folder.
        more: Further atlases, each compared with the one before.
        models: Their models, loaded or by name, one for each atlas: adds cosines of vectors.
        seed: Of random draws.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
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
            matched = matches.filter(pl.col("layer") == layer)
            row |= {name: matched[name].mean() for name in ("excess", "universal")}
            row["left_out"] = row["memories"] - len(matched)
        layers.append(row)
    progress("comparing", len(layers), len(first.layers), "layers")
    every = pl.concat(changed).sort("effect", descending=True, maintain_order=True) if changed else pl.DataFrame()
    frames = {"layers": pl.DataFrame(layers, infer_schema_length=None), "changed": every}
    if models is not None:
        from mnemoscope.comparison.vectors import weight_changes

        frames["weights"] = weight_changes(*models)
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
    effects = mean_effects(first, second, layer)
    features = features.join(effects, on="memory", maintain_order="left")
    beside = (effects["after"].gather(others) - effects["before"]).abs().mean()
    numbers |= {"effect": effects["effect"].mean(), "control_effect": beside}
    numbers |= {kind: kinds.count(kind) for kind in KINDS} | {"not_asked": features["asked"].to_list().count(False)}
    if models is not None:
        from mnemoscope.comparison.vectors import mean_cosines

        numbers |= mean_cosines(models, layer, np.arange(len(others)))
        numbers |= {f"control_{name}": value for name, value in mean_cosines(models, layer, others).items()}
    return numbers, features.filter(pl.col("kind").is_not_null()).drop("asked", "^(before|after).*$").sort(
        "memory", -pl.col("sign")
    )


def mean_effects(first: Atlas, second: Atlas, layer: int) -> pl.DataFrame:
    """memory, before and after (the mean coefficient over all prefixes, times the value's norm), effect (their
    distance), halves_effect (the distance between two random halves of the text at most, in 95 % of draws).
    """
    frames = []
    for atlas, name in ((first, "before"), (second, "after")):
        norms = atlas.table("values", layer=layer, columns=["memory", "value_norm"])
        rows = atlas.table("activity", layer=layer).join(norms, on="memory").sort("memory")
        spread = 2 * Z * pl.col("std") / pl.col("prefixes").clip(1).sqrt()
        size = pl.col("value_norm").cast(pl.Float64)
        frames.append(
            rows.select("memory", (pl.col("mean") * size).alias(name), (spread * size).alias(f"{name}_halves"))
        )
    joined = frames[0].join(frames[1], on="memory", maintain_order="left")
    halves = pl.max_horizontal("before_halves", "after_halves")
    return joined.with_columns(effect=(pl.col("after") - pl.col("before")).abs(), halves_effect=halves)


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


_NOTED = ("torch", "transformers", "tokenizers", "sentencex", "dtype", "device", "threads", "batch_tokens")


def check_comparable(first: Atlas, second: Atlas) -> str:
    """Returns what else the plans differ in, in words."""
    for atlas in (first, second):
        if part := atlas.manifest.part:
            raise AtlasUnfinished(f"{atlas.path} is {part}; join all parts with `mnemoscope merge`, then compare")
    for name, (one, other) in _pair(_facts(first), _facts(second)):
        raise AtlasesDiffer(f"{first.path} and {second.path} differ in {name} ({one}, {other}); mine one text alike")
    plans = ({name: atlas.manifest.plan.get(name) for name in _NOTED} for atlas in (first, second))
    noted = [f"{name} ({one}, {other})" for name, (one, other) in _pair(*plans)]
    return f"{first.path.name} and {second.path.name} differ in {', '.join(noted)}" if noted else ""


def _pair(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, tuple[Any, Any]]]:
    return [(name, (value, second[name])) for name, value in first.items() if value != second[name]]


def _facts(atlas: Atlas) -> dict[str, Any]:
    plan, text = atlas.manifest.plan, atlas.manifest.corpus
    alike = sorted(MiningOptions.planned_names(alike=True))
    # Rows of the head beyond the tokenizer's are empty, and models differ in their number.
    tokens = zip(atlas.vocabulary.raw, atlas.table("tokens", columns=["count"])["count"].to_list(), strict=True)
    return {
        **{f"--{name.replace('_', '-')}": plan.get(name) or None for name in alike},
        "the --seed of --sample": plan.get("seed") if plan.get("sample") else None,
        "the text": f"{text.spec}, sha256 {text.fingerprint[:16]}",
        "the tokenizer": f"sha256 {sha256(repr([row for row in tokens if any(row)]).encode()).hexdigest()[:16]}",
        "the token before every sentence": atlas.manifest.model.beginning.token,
        "the windows of sentences longer than the context": text.counts.get("windows"),
    }


LEAST_NONZERO = 20
"""Samples that are not zero, below which a memory is left out."""
UNIVERSAL = 0.5
_ROTATED, _ROWS = 2_048, 1_024
"""Most memories that are rotated together, larger layers being divided at random; rows of a product."""

Samples = NDArray[np.float32]


def excess_correlations(first: Atlas, second: Atlas, *, seed: int, progress: Progress) -> pl.DataFrame:
    """For each memory of the first with enough samples: layer, memory, other (the memory of the second that it
    correlates with most), correlation, control (the largest correlation after a rotation within the second's layers),
    excess, universal.
    """
    if not first.table("background").equals(second.table("background")):
        raise AtlasesDiffer(f"{first.path} and {second.path} have samples of different prefixes; mine with one --seed")
    ours = [_frequent(first, layer) for layer in first.layers]
    units = _units(np.concatenate([rows for _, rows in ours]))
    correlation, control = np.full((2, len(units)), -1.0, np.float32)
    other = np.full(len(units), None, object)
    for done, layer in enumerate(second.layers):
        progress("correlating", done, len(second.layers), "layers")
        theirs, rows = _frequent(second, layer)
        generator, rotated = np.random.default_rng((seed, 12, layer)), np.empty_like(rows)
        for group in np.array_split(generator.permutation(len(rows)), 1 + len(rows) // _ROTATED):
            q, r = np.linalg.qr(generator.standard_normal((len(group), len(group))))
            rotated[group] = (q * np.sign(np.diag(r))).astype(np.float32) @ rows[group]
        rotated, rows = _units(rotated), _units(rows)
        for start in range(0, len(units) if theirs else 0, _ROWS):
            part = slice(start, start + _ROWS)
            products = units[part] @ rows.T
            best = products.max(1)
            other[part] = np.where(best > correlation[part], np.array(theirs)[products.argmax(1)], other[part])
            correlation[part] = np.maximum(correlation[part], best)
            control[part] = np.maximum(control[part], (units[part] @ rotated.T).max(1))
    progress("correlating", len(second.layers), len(second.layers), "layers")
    names = [name for every, _ in ours for name in every]
    layers = np.repeat(first.layers, [len(every) for every, _ in ours])
    columns = {"layer": layers, "memory": names, "other": [*other], "correlation": correlation, "control": control}
    excess = pl.col("correlation") - pl.col("control")
    frame = pl.DataFrame(columns, schema_overrides={"memory": pl.String, "other": pl.String})
    return frame.with_columns(excess=excess, universal=excess > UNIVERSAL)


def _frequent(atlas: Atlas, layer: int) -> tuple[list[str], Samples]:
    """The memories with enough samples that are not zero, and their samples `[memory, prefix]`."""
    table = atlas.table("samples", layer=layer).sort("memory")
    stored = table["coefficients"].explode().to_numpy().astype(np.float32).reshape(table.height, -1)
    frequent = np.flatnonzero((stored != 0).sum(1) >= LEAST_NONZERO)
    names = [str(atlas.name(layer, number)) for number in frequent.tolist()]
    return names, stored[frequent] * table["scale"].to_numpy()[frequent, None]


def _units(rows: Samples) -> Samples:
    """The rows without their mean, of length 1: their products are Pearson's correlations."""
    centred = rows - rows.mean(1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12))


LEAST_POSITIONS = 50
"""Sampled positions beyond the edge at which a feature must fire to die or be born."""
REPURPOSED = 0.1
"""The Jaccard index below which triggers are others."""
PAIRS, CHANCE = 10_000, 0.95
_SPAN = 1 << 24
"""More than the positions of any sentence."""

Array = NDArray[Any]


@dataclass(frozen=True)
class LayerFeatures:
    """`places [sign, memory, rank]` are triggers, sentence and position as one number, -1 where there is none, for the
    signs +1 and -1. `signed`: some coefficient is below zero.
    """

    activity: pl.DataFrame
    places: Array
    signed: bool

    @classmethod
    def read(cls, atlas: Atlas, layer: int) -> "LayerFeatures":
        activity = atlas.table("activity", layer=layer).sort("memory")
        rows = atlas.table("triggers", layer=layer).select("memory", "sign", "rank", "sentence", "position")
        memory, sign, rank, sentence, position = rows.cast(pl.Int64).to_numpy().T
        places = np.full((2, activity.height, int(rank.max(initial=-1)) + 1), -1, np.int64)
        places[(1 - sign) // 2, memory, rank] = sentence * _SPAN + position
        return cls(activity, places, bool((activity["min"] < 0).any()))

    def edges(self, sign: int) -> Array:
        """The number of each feature's edge; 0 stands for zero, -1 for none."""
        edge = strong_edge(self.activity, sign)
        return np.where(edge > 0, edge, -1) if self.signed else np.zeros_like(edge)

    def beyond(self, sign: int, edge: Array | int = 0) -> Array:
        """Sampled positions beyond the edges; above 0 by the share of all positions: the first bin counts zeros."""
        edge = np.broadcast_to(edge, self.activity.height)
        counts = sampled_beyond(self.activity, sign, np.maximum(edge, 0))
        positive, prefixes, sampled = (self.activity[name].to_numpy() for name in ("positive", "prefixes", "sampled"))
        return np.where((edge == 0) & (sign == 1), positive * sampled / np.maximum(prefixes, 1), counts)

    def rate(self, sign: int) -> Array:
        """The share of prefixes where the coefficient has the sign; below zero of the sampled ones."""
        return np.asarray(self.beyond(sign) / np.maximum(self.activity["sampled"].to_numpy(), 1))

    def lost_in(self, other: "LayerFeatures", sign: int) -> Array:
        """The features that fire here, and nowhere beyond the same edge in the `other`."""
        edge = self.edges(sign)
        fires = (edge >= 0) & (self.beyond(sign, edge) >= LEAST_POSITIONS)
        return np.asarray(fires & (other.beyond(sign, edge) == 0))


def jaccard(first: Array, second: Array) -> Array:
    """The Jaccard indices `[...]` of sets `[..., element]`, where -1 is no element; NaN for two empty sets."""
    both = np.sort(np.concatenate([first, second], axis=-1), axis=-1)
    shared = ((both[..., 1:] == both[..., :-1]) & (both[..., 1:] >= 0)).sum(-1)
    union = (both >= 0).sum(-1) - shared
    return np.where(union > 0, shared / np.maximum(union, 1), np.nan)


def jaccard_by_chance(first: LayerFeatures, second: LayerFeatures, generator: np.random.Generator) -> float:
    """The 95th percentile of the Jaccard indices of different memories, of one sign; -1 without any."""
    memories = first.activity.height
    signs = generator.integers(1 + (first.signed or second.signed), size=PAIRS)
    one, step = generator.integers(memories, size=PAIRS), generator.integers(1, max(2, memories), size=PAIRS)
    indices = jaccard(first.places[signs, one], second.places[signs, (one + step) % memories])
    return -1.0 if memories == 1 or np.isnan(indices).all() else float(np.nanquantile(indices, CHANCE))


def compare_features(first: LayerFeatures, second: LayerFeatures, *, chance: float) -> pl.DataFrame:
    """One row a feature: memory, sign, jaccard, rates, kind (null: as before), and whether it was asked: it has an edge
    where it occurs.
    """
    frames = []
    for number, sign in enumerate((1, -1) if first.signed or second.signed else (1,)):
        places = first.places[number], second.places[number]
        indices, died, born = jaccard(*places), first.lost_in(second, sign), second.lost_in(first, sign)
        in_both = (places[0] >= 0).any(1) & (places[1] >= 0).any(1)
        kinds = {"died": died, "born": born, "repurposed": in_both & (indices < REPURPOSED) & (indices <= chance)}
        asked = [(one.edges(sign) >= 0) | (one.beyond(sign) == 0) for one in (first, second)]
        columns = {"jaccard": indices, "rate_before": first.rate(sign), "rate_after": second.rate(sign)}
        columns |= {"kind": np.select([*kinds.values()], [*kinds], ""), "asked": asked[0] & asked[1]}
        frames.append(pl.DataFrame(columns).with_row_index("memory").with_columns(sign=pl.lit(sign, pl.Int8)))
    return pl.concat(frames).with_columns(pl.col("jaccard").fill_nan(None), pl.col("kind").replace("", None))
