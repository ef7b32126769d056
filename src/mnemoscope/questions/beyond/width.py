"""B5: how many of its memories each layer needs, and how many tokens could stop there (early exit).

Counts memories that never fire or are duplicates. The least useful memories of one layer at a time are removed (mean
ablation), and the loss on held-out text is compared with that of the whole model and with random removals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.intervals import DRAWS, NOTHING, Estimate, Resamples, clustered_share, ends, share
from mnemoscope.foundation.memory_names import ABLATED_PARTS, EXIT_THRESHOLDS
from mnemoscope.questions.answer_builder import AnswerBuilder
from mnemoscope.questions.question import Claim, Number, Paper, Question
from mnemoscope.questions.sources import NUMBER_OF_DOCUMENTS, plan_seed, require_table
from mnemoscope.questions.verdicts import UNTRAINED, above

TOLERANCE = 0.01
"""Nats per token by which the loss may rise."""
TOLERATED = 0.05
"""The share of stopped tokens that may differ from the model's own."""
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Student's t, 97.5 %, by the number of random draws."""

_LEAST, _RANDOM, _STOPPED, _WRONG = (
    "nats lost without so many of the least useful memories",
    "nats lost without so many random memories",
    "tokens that could stop, by the least probability of the residual's top token",
    "of those, tokens whose final prediction is another one",
)
PARTS = {round(100 * part): part for part in ABLATED_PARTS}
LEAST = tuple(Number(f"least_{percent}", "number", f"least useful {percent} %", table=_LEAST) for percent in PARTS)
RANDOM = tuple(Number(f"random_{percent}", "number", f"random {percent} %", table=_RANDOM) for percent in PARTS)
THRESHOLDS = {round(100 * threshold): threshold for threshold in EXIT_THRESHOLDS}
STOPPED = tuple(Number(f"stopped_{each}", "share", f"stopped, p > {each} %", table=_STOPPED) for each in THRESHOLDS)
WRONG = tuple(Number(f"wrong_{percent}", "share", f"wrong, p > {percent} %", table=_WRONG) for percent in THRESHOLDS)

QUESTION = Question(
    "width",
    title="how wide a layer need be",
    paper=Paper(
        figure="B5",
        section="beyond",
        question="How many of its memories does each layer need, and how many tokens could stop there?",
        claims=(
            Claim(
                "the memories that are used least matter less than random ones (not asked by the paper)",
                "-",
                "random_above_least",
                "number",
                "half of a layer: nats lost without random memories minus without the least useful, mean of the layers;"
                f" {UNTRAINED}",
                above(0),
            ),
        ),
    ),
    numbers=(
        Number("width_needed", "share", f"memories needed at +{TOLERANCE} nats"),
        Number("width_needed_random", "share", "needed where random ones are taken out"),
        Number("memories_needed", "count", f"memories needed at +{TOLERANCE} nats, how many"),
        Number("never_fires", "share", "memories that never fire"),
        Number("rate_bound", "share", "most often that those may fire (3 / n)"),
        Number("duplicates", "share", "memories that are there twice"),
        Number("random_above_least", "number", "nats, half of the memories: random minus least useful"),
        Number("could_stop", "share", f"tokens that could stop with at most {TOLERATED:.0%} errors"),
        *LEAST,
        *RANDOM,
        *STOPPED,
        *WRONG,
        Number("whole_loss", "number", "nats a token, the whole model"),
        NUMBER_OF_DOCUMENTS,
    ),
    main="width_needed",
    headline=("width_needed", "width_needed_random", "never_fires", "duplicates", "could_stop"),
    layer_page=("width_needed", "width_needed_random", "never_fires", "duplicates", "could_stop"),
    may_lack=("width",),
    nothing="the validation text gave no sentence to measure a loss on; mine more text, or name one with --validation",
    interval=f"over documents (losses: bootstrap, {DRAWS} draws, seed {{seed}}); over memories (Wilson)",
    projections=("streams",),
)

Floats = NDArray[np.float64]
Curve = dict[int, Floats]
"""Rise of the loss in nats by the number of memories removed: `[document]`, of random ones `[document, draw]`."""


def answer(atlas: Atlas) -> pl.DataFrame:
    """Raises AtlasUnfinished if the atlas has no table `width`, AtlasDamaged."""
    table = require_table(atlas, "width")
    builder, losses = AnswerBuilder(QUESTION), Losses.of(table, seed=plan_seed(atlas))
    above_least: dict[int, Spread] = {}
    unused, duplicates, total = 0, 0, 0
    for layer in atlas.layers:
        activity = require_table(atlas, "activity", layer=layer)
        # A memory that is never above zero but sometimes below is used: activations may be negative.
        silent = activity.filter((pl.col("positive") == 0) & (pl.col("min") == 0))
        copies = int(table.filter(pl.col("layer") == layer, pl.col("kind") == "duplicate")["memories"].sum())
        memories = activity.height
        unused, duplicates, total = unused + silent.height, duplicates + copies, total + memories
        builder.add(layer, "never_fires", share(silent.height, memories))
        builder.add(layer, "rate_bound", rate_bound(silent["prefixes"]))
        builder.add(layer, "duplicates", share(copies, memories))
        least, random = losses.curve(layer, "least"), losses.curve(layer, "random")
        needed = losses.width_needed(least, memories)
        value, low, high = (None if end is None else end * memories for end in (needed.value, needed.low, needed.high))
        builder.add(layer, "width_needed", needed)
        builder.add(layer, "width_needed_random", losses.width_needed(random, memories))
        builder.add(layer, "memories_needed", Estimate(value, needed.count, low, high))
        for kind, curve in (("least", least), ("random", random)):
            for percent, part in PARTS.items():
                if int(part * memories) in curve:
                    builder.add(layer, f"{kind}_{percent}", losses.increase(curve[int(part * memories)]))
        if (half := memories // 2) and {half} <= least.keys() & random.keys():
            above_least[layer] = losses.spread(least[half], random[half])
            builder.add(layer, "random_above_least", mean_spread([above_least[layer]]))
        builder.add_named(layer, exits(table.filter(pl.col("layer") == layer, pl.col("kind") == "exit")))
    for name, count in (("never_fires", unused), ("duplicates", duplicates)):
        builder.add(None, name, share(count, total))
    builder.add(None, "random_above_least", mean_spread(list(above_least.values())))
    builder.add(None, "whole_loss", losses.increase(losses.whole))
    documents = len(losses.tokens)
    builder.add(None, "documents", Estimate(float(documents), documents) if documents else NOTHING)
    return builder.frame()


def rate_bound(prefixes: pl.Series) -> Estimate:
    """The 95 % upper bound on the firing rate of memories that never fired in n prefixes: 3 / n, at most 1."""
    if not len(prefixes):
        return NOTHING
    fewest = int(prefixes.min())  # type: ignore[arg-type]
    return Estimate(min(1.0, 3 / max(1, fewest)), len(prefixes))


def exits(rows: pl.DataFrame) -> dict[str, Estimate]:
    """The share of tokens that could stop above each threshold, and the share of these that are wrong. `could_stop` is
    that of the lowest threshold whose error interval ends at `TOLERATED` or below; 0 if there is none.
    """
    estimates: dict[str, Estimate] = {}
    could_stop = NOTHING
    for percent, threshold in reversed(THRESHOLDS.items()):
        here = rows.filter((pl.col("threshold") - threshold).abs() < 1e-6)
        stopped = clustered_share(here["stopped"].to_numpy(), here["tokens"].to_numpy())
        wrong = clustered_share(here["wrong"].to_numpy(), here["stopped"].to_numpy())
        estimates |= {f"stopped_{percent}": stopped, f"wrong_{percent}": wrong}
        if wrong.high is not None and wrong.high <= TOLERATED:
            could_stop = stopped
        elif could_stop.value is None and stopped.count:
            could_stop = Estimate(None, stopped.count)
    if could_stop.value is None and could_stop.count:
        could_stop = Estimate(0.0, could_stop.count)
    return estimates | {"could_stop": could_stop}


@dataclass(frozen=True)
class Spread:
    """How much more the loss rises without random memories than without the least useful ones."""

    value: float
    draws: Floats
    """`value` in every resample of the documents."""
    deviation: float
    """Standard deviation between the `count` sets of random memories."""
    count: int
    documents: int


def mean_spread(layers: list[Spread]) -> Estimate:
    """The mean over layers; the interval covers documents and random draws. If usefulness had no effect, the difference
    of the least useful memories from the mean of R draws would have the variance s^2 (1 + 1 / R), with s estimated from
    R draws (Student's t).
    """
    if not layers:
        return NOTHING
    value = sum(one.value for one in layers) / len(layers)
    low, high = ends(np.mean([one.draws for one in layers], axis=0))
    tabled = [one for one in layers if one.count in _T]
    if low is None or high is None or len(tabled) < len(layers):
        return Estimate(value, layers[0].documents)
    margin = math.sqrt(sum((_T[one.count] * one.deviation) ** 2 * (1 + 1 / one.count) for one in tabled)) / len(layers)
    return Estimate(
        value, layers[0].documents, value - math.hypot(value - low, margin), value + math.hypot(high - value, margin)
    )


class Losses:
    """Losses in nats `[document]`: `whole` of the whole model, `runs` minus those of the whole model."""

    def __init__(self, tokens: Floats, whole: Floats, runs: Mapping[tuple[int, str], Curve], *, seed: int) -> None:
        self.tokens, self.whole, self._runs = tokens, whole, runs
        self._resamples = Resamples(len(tokens), seed)

    @classmethod
    def of(cls, table: pl.DataFrame, *, seed: int) -> "Losses":
        """Raises AtlasDamaged if a run lacks a document."""
        whole = table.filter(pl.col("kind") == "whole").sort("document")
        runs: dict[tuple[int, str], dict[int, list[Floats]]] = {}
        rows = table.filter(pl.col("kind").is_in(["least", "random"])).sort("layer", "kind", "memories", "draw")
        keys: list[Any] = ["layer", "kind", "memories", "draw"]
        for (layer, kind, memories, _), run in rows.group_by(keys, maintain_order=True):
            run = run.sort("document")
            if not run["document"].equals(whole["document"]):
                raise AtlasDamaged(f"table width: layer {layer} lacks documents; make it again with --force")
            lost = run["loss"].to_numpy() - whole["loss"].to_numpy()
            runs.setdefault((layer, kind), {}).setdefault(memories, []).append(lost)
        curves = {
            (layer, kind): {n: lost[0] if kind == "least" else np.stack(lost, 1) for n, lost in by_count.items()}
            for (layer, kind), by_count in runs.items()
        }
        return cls(whole["tokens"].to_numpy().astype(np.float64), whole["loss"].to_numpy(), curves, seed=seed)

    def curve(self, layer: int, kind: str) -> Curve:
        return self._runs.get((layer, kind), {})

    def increase(self, lost: Floats) -> Estimate:
        """Nats per token; the mean over draws if `lost` is `[document, draw]`."""
        if not len(self.tokens):
            return NOTHING
        value, draws = self._per_token(lost)
        return Estimate(value, int(self.tokens.sum()), *ends(draws))

    def width_needed(self, curve: Curve, memories: int) -> Estimate:
        """The share of memories left after the largest removal that, like every smaller one, costs at most `TOLERANCE`.
        Considers only the counts that were tried.
        """
        if not curve or not len(self.tokens):
            return NOTHING
        counts = sorted(curve)
        costs = [self._per_token(curve[count]) for count in counts]
        left = 1 - np.array([0, *counts]) / memories
        value = left[_count_tolerable(np.array([value for value, _ in costs]))]
        low, high = ends(left[_count_tolerable(np.stack([draws for _, draws in costs], -1))])
        return Estimate(float(value), memories, low, high)

    def spread(self, least: Floats, random: Floats) -> Spread:
        value, draws = self._per_token(random.mean(1) - least)
        each = [self._per_token(one)[0] for one in random.T]
        deviation = float(np.std(each, ddof=1)) if len(each) > 1 else math.nan
        return Spread(value, draws, deviation, len(each), len(self.tokens))

    def _per_token(self, lost: Floats) -> tuple[float, Floats]:
        """Nats per token, and the same in each resample."""
        nats = lost if lost.ndim == 1 else lost.mean(1)
        draws = self._resamples.ratio_draws(nats[:, None], self.tokens[:, None])[:, 0]
        return float(nats.sum() / self.tokens.sum()), draws


def _count_tolerable(increases: Floats) -> NDArray[np.int64]:
    """The number of counts, from the smallest on, that cost at most the tolerance, along the last axis."""
    return np.asarray(np.logical_and.accumulate(increases <= TOLERANCE, axis=-1).sum(-1), np.int64)
