"""Figure 3: the change of a trigger's coefficient, (m' - m) / m, without its first, last or a random token.

Of a model that reads sentences whole also with the trigger's own token masked, of which it asks what others ask of the
last one; of one that reads sources also without the first, last or a random token of the trigger's source.
The split by kind of pattern covers the top 25 triggers.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import DRAWS, NOTHING, Estimate, Resamples, enclose, ends
from mnemoscope.patterns import coverage
from mnemoscope.questions.answer_builder import AnswerBuilder, share_above
from mnemoscope.questions.question import Claim, Number, Paper, Question
from mnemoscope.questions.sources import plan_seed, require_table
from mnemoscope.questions.verdicts import above

TEXT, SOURCE = ("first", "last", "random"), ("source_first", "source_last", "source_random")
REMOVED = ("own", *TEXT, *SOURCE)
STATISTICS = {"median": (0.5, "median"), "q25": (0.25, "lower quartile"), "q75": (0.75, "upper quartile")}
TRIGGER_KINDS = {
    "all": ("", ""),
    "shallow": ("shallow_only", "by layer, triggers under shallow patterns only"),
    "semantic": ("semantic_only", "by layer, triggers under semantic patterns only"),
    "both": ("both", "by layer, triggers under both kinds of pattern"),
    "none": ("none", "by layer, triggers under no pattern"),
}
"""The kind of `coverage` that each part of the split selects, and the caption of its table."""


def _number(removed: str, statistic: str, kind: str) -> Number:
    place = removed.removeprefix("source_")
    lost = f"{place} token removed" if place == removed else f"{place} token of the source removed"
    lost = "own token masked" if removed == "own" else lost
    name, label = f"{removed}_{statistic}", f"{lost}, {STATISTICS[statistic][1]}"
    if kind == "all":
        return Number(name, "share", label, optional=removed not in TEXT)
    return Number(f"{name}_{kind}", "share", f"{label} ({kind})", table=TRIGGER_KINDS[kind][1])


QUESTION = Question(
    "key_removals",
    title="which token matters",
    paper=Paper(
        figure="Figure 3",
        section="3.2",
        question="How much does a memory's activation (coefficient) change when a token is removed from the {prefixes}"
        " that trigger it?",
        claims=(
            Claim(
                "removing the last token hurts most",
                "hurts most",
                "last_margin",
                "share",
                "over all layers the median change without the last token is below that without the first and that"
                " without a random one; memories are resampled",
                above(0),
                unless="own_margin",
            ),
            Claim("layers whose medians show it", "all", "last_hurts_most", "share", counted=True, unless="own_margin"),
            Claim(
                "the last token matters less in upper layers: median change there minus that in lower layers",
                "above 0",
                "last_median_upper_minus_lower",
                "number",
                "above 0",
                above(0),
                unless="own_margin",
            ),
            Claim(
                "masking the trigger's own token hurts most (not asked by the paper)",
                "-",
                "own_margin",
                "share",
                "over all layers its median change is below that without the first, the last and a random token;"
                " memories are resampled",
                above(0),
                optional=True,
            ),
        ),
    ),
    numbers=(
        *(_number(*each, kind) for kind in TRIGGER_KINDS for each in product(REMOVED, STATISTICS)),
        Number("last_margin", "share", "least median without another token, minus that without the last"),
        Number("last_hurts_most", "share", "layers where removing the last token hurts most"),
        Number(
            "last_median_upper_minus_lower", "share", "median change without the last token, upper minus lower layers"
        ),
        Number("own_margin", "share", "least median without another token, minus that with the own one masked"),
        Number("own_hurts_most", "share", "layers where masking the own token hurts most"),
        Number("own_median_upper_minus_lower", "share", "median change with it masked, upper minus lower layers"),
        Number("source_margin", "share", "least median without a token of the source, minus that without the last"),
        Number("excluded_length_one", "count", "triggers of one token, left out"),
        Number(
            "excluded_length_two",
            "count",
            "triggers of two tokens, left out: the model has no beginning token, or reads sentences whole",
        ),
    ),
    main="last_median",
    headline=tuple(f"{removed}_median" for removed in REMOVED),
    layer_page=("own_median", "last_median", "first_median", "source_random_median"),
    nothing="no memory of this atlas has the triggers that this question is about; mine more text",
    interval=f"over memories (bootstrap, {DRAWS} draws, seed {{seed}})",
    needs_patterns=True,
    may_lack=("removals",),
    keys=True,
)

FEWEST = 10
"""The fewest memories for a bootstrap interval of a difference."""


def answer(atlas: Atlas) -> pl.DataFrame:
    """Own columns: `removed` (`REMOVED`), `statistic` (median, q25, q75), `kind` (all, shallow, semantic, both, none).
    Raises AtlasUnfinished if removals, triggers or patterns are missing.
    """
    rows, token = _changes(atlas), "last" if atlas.reading.causal else "own"
    builder = AnswerBuilder(QUESTION, {"removed": pl.String, "statistic": pl.String, "kind": pl.String})
    margins = []
    for layer in atlas.layers:
        here = rows.filter(pl.col("layer") == layer)
        _add_estimates(builder, layer, here, atlas)
        margin = _add_margins(builder, layer, here, atlas)
        if margin.value is not None:
            margins.append(margin)
    _add_estimates(builder, None, rows, atlas)
    _add_margins(builder, None, rows, atlas)
    builder.add(None, f"{token}_hurts_most", share_above(margins, 0))
    without = rows.filter(pl.col("removed") == token)
    upper = without["layer"].is_in(list(atlas.upper_layers))
    change = _compare_medians(without, [upper, ~upper], lambda above, below: above - below, atlas)
    builder.add(None, f"{token}_median_upper_minus_lower", change)
    two = atlas.reading.first or not atlas.reading.causal
    for length in ("length_one", "length_two") if two else ("length_one",):
        count = atlas.manifest.questions.removals_excluded[length]
        builder.add(None, f"excluded_{length}", Estimate(float(count), count))
    return builder.frame()


def _add_margins(builder: AnswerBuilder, layer: int | None, rows: pl.DataFrame, atlas: Atlas) -> Estimate:
    """The least median change without another token, minus that without the own or last one; returns the text's."""
    token = "last" if atlas.reading.causal else "own"

    def margin(others: tuple[str, ...]) -> Estimate:
        compared = [token, *(one for one in others if one != token)]
        here = rows.filter(pl.col("removed").is_in(compared))
        parts = [here["removed"] == one for one in compared]
        return _compare_medians(here, parts, lambda own, *others: np.minimum.reduce(others) - own, atlas)

    of_text = margin(TEXT)
    builder.add(layer, f"{token}_margin", of_text)
    if atlas.reading.source is not None:
        builder.add(layer, "source_margin", margin(SOURCE))
    return of_text


def _changes(atlas: Atlas) -> pl.DataFrame:
    """One row per trigger and removed token: layer, memory, removed, change, kind (null beyond the top 25)."""
    removals, patterns = require_table(atlas, "removals"), require_table(atlas, "patterns")
    counted = (pl.col("sign") == 1) & (pl.col("coefficient") != 0)
    rows = removals.filter(counted).select(
        pl.col("layer").cast(pl.Int16),
        "memory",
        "removed",
        group=pl.col("trigger_rank").cast(pl.Int16),
        change=(pl.col("removed_coefficient").cast(pl.Float64) - pl.col("coefficient")) / pl.col("coefficient"),
    )
    memories = rows.select("layer", "memory").unique()
    kinds = []
    for layer in atlas.layers:
        here = memories.filter(pl.col("layer") == layer)["memory"].to_list()
        prefixes = coverage.top_prefixes(atlas, layer).filter(pl.col("memory").is_in(here))
        of_layer = patterns.filter((pl.col("layer") == layer) & pl.col("memory").is_in(here))
        kinds.append(coverage.kinds(prefixes, of_layer).with_columns(layer=pl.lit(layer, pl.Int16)))
    return rows.join(pl.concat(kinds), on=["layer", "memory", "group"], how="left", maintain_order="left")


def _add_estimates(builder: AnswerBuilder, layer: int | None, rows: pl.DataFrame, atlas: Atlas) -> None:
    codes, memories = _memory_codes(rows)
    removed, kind, change = (rows[name].to_numpy() for name in ("removed", "kind", "change"))
    of_kind = {name: kind == one if one else np.ones(len(kind), bool) for name, (one, _) in TRIGGER_KINDS.items()}
    own, source = () if atlas.reading.causal else ("own",), () if atlas.reading.source is None else SOURCE
    asked = (*own, *TEXT, *source)
    masks = {(token, name): (removed == token) & mask for token in asked for name, mask in of_kind.items()}
    sets = [(change[mask], codes[mask]) for mask in masks.values()]
    quantiles = Resamples(memories, plan_seed(atlas)).quantiles(sets, [level for level, _ in STATISTICS.values()])
    for (token, name), estimates in zip(masks, quantiles, strict=True):
        for statistic, estimate in zip(STATISTICS, estimates, strict=True):
            number = _number(token, statistic, name)
            builder.add(layer, number.name, estimate, removed=token, statistic=statistic, kind=name)


def _memory_codes(rows: pl.DataFrame) -> tuple[NDArray[Any], int]:
    places = rows["layer"].cast(pl.Int64).to_numpy() * (1 << 32) + rows["memory"].to_numpy()
    memories, codes = np.unique(places, return_inverse=True)
    return codes, len(memories)


def _compare_medians(rows: pl.DataFrame, parts: list[pl.Series], rule: Callable[..., Any], atlas: Atlas) -> Estimate:
    """`rule` of the medians of the parts; memories are resampled, the same ones for all parts."""
    codes, memories = _memory_codes(rows)
    changes, masks = rows["change"].to_numpy(), [part.to_numpy() for part in parts]
    if not all(mask.any() for mask in masks):
        return NOTHING
    value = float(rule(*(np.median(changes[mask]) for mask in masks)))
    if memories < FEWEST:
        return Estimate(value, rows.height)
    resamples = Resamples(memories, plan_seed(atlas))
    medians = (resamples.quantile_draws(changes[mask], codes[mask], [0.5])[0] for mask in masks)
    return enclose(value, rows.height, ends(rule(*medians)))
