"""Figure 4: how often a value's top token is the memory's target, with baselines.

Also the log probability that the value assigns to the next tokens of all triggers, minus that of the unigram.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import NOTHING, Estimate, exact_share, mean, share
from mnemoscope.questions.answer_builder import AnswerBuilder, question_of_values
from mnemoscope.questions.question import EVERY, Claim, Number, Paper
from mnemoscope.questions.sources import counts_spoken_of, tokens_spoken_of, values, values_asked
from mnemoscope.questions.verdicts import above, at_most

QUESTION = question_of_values(
    "value_agreement",
    title="whether values predict {what_is_there}",
    paper=Paper(
        figure="Figure 4",
        section="4",
        question="How often is the token that a value ranks first the one {that_follows} the memory's best trigger?",
        claims=(
            Claim(
                "agreement in layers 1-10",
                "about 0",
                "agreement_lower",
                "share",
                "at most a third of the best layer's, intervals corrected for all layers; the difference",
                at_most(0),
                by="agreement_lower_above_third",
            ),
            Claim(
                "agreement in the best layer",
                "up to 3.5 %",
                "agreement_best_layer",
                "share",
                "some layer is above its own shuffled targets, and chance, with an interval corrected for all layers;"
                " the greatest difference",
                above(0),
                by="agreement_best_above_baseline",
            ),
            Claim("agreement by chance", "0.0004 %", "chance", "share"),
            Claim(
                "agreement in the best layer, over all memories, also those that may copy (not asked by the paper)",
                "-",
                f"{EVERY}agreement_best_layer",
                "share",
                optional=True,
            ),
        ),
    ),
    numbers=(
        Number("agreement", "share"),
        Number("shuffled_targets", "share"),
        Number("most_frequent_token", "share", "always the most frequent {target}"),
        Number("chance", "share", "chance, 1 / vocabulary"),
        Number(
            "log_probability_gain",
            "nats",
            "mean log probability of its triggers' {next_tokens} at coefficient 1 (the paper's), minus the unigram's",
        ),
        Number("without_target", "share", "memories without a target"),
        Number("agreement_above_baseline", "share", "agreement above shuffled targets and chance"),
        Number("agreement_lower", "share", "agreement in the lower layers"),
        Number("agreement_upper", "share", "agreement in the upper layers"),
        Number("agreement_best_layer", "share", "agreement in the best layer"),
        Number(
            "agreement_best_above_baseline", "share", "agreement above shuffled targets and chance, where it is most"
        ),
        Number(
            "agreement_lower_above_third", "share", "agreement in the lower layers, minus a third of the best layer's"
        ),
    ),
    main="agreement",
    headline=(
        "literal_agreement",
        "agreement",
        "every_agreement",
        "shuffled_targets",
        "most_frequent_token",
        "without_target",
        "log_probability_gain",
    ),
    layer_page=("literal_agreement", "agreement", "shuffled_targets"),
    literal=(
        *("agreement", "shuffled_targets", "without_target", "agreement_above_baseline", "agreement_lower"),
        *("agreement_upper", "agreement_best_layer", "agreement_best_above_baseline", "agreement_lower_above_third"),
    ),
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Own column: `best_layer`. Raises AtlasUnfinished if values, triggers or tokens are missing."""
    counts = counts_spoken_of(atlas)
    frequent = int(counts.argmax())  # of equal counts the lowest id
    rows = values(atlas).join(_unigram(atlas, counts), on=["layer", "memory"], how="left", maintain_order="left")
    builder = AnswerBuilder(QUESTION, {"best_layer": pl.Int16})
    for adding, read in values_asked(atlas, builder, rows):
        _add(adding, atlas, read, frequent)
    return builder.frame_of_values(atlas)


def _add(builder: AnswerBuilder, atlas: Atlas, rows: pl.DataFrame, frequent: int) -> None:
    chance = 1 / atlas.manifest.model.sizes.vocabulary

    def estimate(rows: pl.DataFrame) -> dict[str, Estimate]:
        estimates = _estimates(rows, frequent, chance)
        if not atlas.reading.causal and builder.prefix != EVERY:  # a memory that was asked at a mask has a target
            del estimates["without_target"]
        return estimates

    by_layer = {layer: estimate(rows.filter(pl.col("layer") == layer)) for layer in atlas.layers}
    for layer, estimates in by_layer.items():
        builder.add_named(layer, estimates)
        builder.add(layer, "agreement_above_baseline", _above_baseline(estimates, looks=1))
    builder.add_named(None, estimate(rows))
    upper = pl.col("layer").is_in(list(atlas.upper_layers))
    builder.add(None, "agreement_lower", _agreement(rows.filter(~upper)))
    builder.add(None, "agreement_upper", _agreement(rows.filter(upper)))
    best, _ = _greatest({layer: one["agreement"] for layer, one in by_layer.items()})
    builder.add(None, "agreement_best_layer", NOTHING if best is None else by_layer[best]["agreement"], best_layer=best)
    looks = len(by_layer)
    where, most = _greatest({layer: _above_baseline(estimates, looks=looks) for layer, estimates in by_layer.items()})
    builder.add(None, "agreement_best_above_baseline", most, best_layer=where)
    looks = len(by_layer) + 1
    _, greatest = _greatest({layer: _exact(one["agreement"], looks) for layer, one in by_layer.items()})
    below = _exact(_agreement(rows.filter(~upper)), looks)
    builder.add(None, "agreement_lower_above_third", _above_third(below, greatest))


def _exact(agreement: Estimate, looks: int) -> Estimate:
    if agreement.value is None:
        return NOTHING
    return exact_share(round(agreement.value * agreement.count), agreement.count, looks=looks)


def _above_baseline(estimates: dict[str, Estimate], *, looks: int) -> Estimate:
    """The agreement minus shuffled targets, or minus chance if that is greater. This baseline is taken as known: the
    interval is the exact one of the agreement.
    """
    shuffled, chance = estimates["shuffled_targets"].value, estimates["chance"].value
    if shuffled is None or chance is None:
        return NOTHING
    exact, baseline = _exact(estimates["agreement"], looks), max(shuffled, chance)
    value, low, high = (None if end is None else end - baseline for end in (exact.value, exact.low, exact.high))
    return Estimate(value, exact.count, low, high)


def _greatest(estimates: dict[int, Estimate]) -> tuple[int | None, Estimate]:
    """The layer with the greatest estimate, of ties the lowest, and that estimate. Its interval covers the greatest of
    all layers' true values, since the layers' intervals hold at once.
    """
    defined = [(one.value, -layer, one) for layer, one in estimates.items() if one.value is not None]
    if not defined:
        return None, NOTHING
    value, minus, most = max(defined, key=lambda one: one[:2])
    low, high = (max(getattr(one, end) for *_, one in defined) for end in ("low", "high"))
    return -minus, Estimate(value, most.count, low, high)


def _above_third(lower: Estimate, best: Estimate) -> Estimate:
    if lower.value is None or lower.low is None or lower.high is None:
        return NOTHING
    if best.value is None or best.low is None or best.high is None:
        return NOTHING
    low, high = lower.low - best.high / 3, lower.high - best.low / 3
    return Estimate(lower.value - best.value / 3, lower.count, low, high)


def _estimates(rows: pl.DataFrame, frequent: int, chance: float) -> dict[str, Estimate]:
    with_target = rows.filter(pl.col("target").is_not_null())
    count = with_target.height
    gain = (rows["log_probability"].cast(pl.Float64) - rows["unigram"]).drop_nulls()
    return {
        "agreement": _agreement(rows),
        "shuffled_targets": _shuffled_agreement(with_target),
        "most_frequent_token": share(int((with_target["target"] == frequent).sum()), count),
        "chance": Estimate(chance, count),
        "log_probability_gain": mean(gain),
        "without_target": share(rows.height - count, rows.height),
    }


def _agreement(rows: pl.DataFrame) -> Estimate:
    agrees = rows["agrees"].drop_nulls()
    return share(int(agrees.sum()), len(agrees))


def _shuffled_agreement(rows: pl.DataFrame) -> Estimate:
    """The expected agreement under a random permutation of the targets."""
    if rows.is_empty():
        return NOTHING
    tops, targets = (rows[name].value_counts(name="count").rename({name: "token"}) for name in ("top", "target"))
    both = tops.join(targets, on="token")
    pairs = (both["count"].cast(pl.Int64) * both["count_right"].cast(pl.Int64)).sum()
    return Estimate(int(pairs) / rows.height**2, rows.height)


def _unigram(atlas: Atlas, counts: NDArray[np.float64]) -> pl.DataFrame:
    """Columns: layer, memory, unigram (mean log probability by `counts` of the tokens that its triggers speak of)."""
    # Such a token has a count of at least 1, so no logarithm of 0 is read.
    log_p = np.log(np.maximum(counts, 1.0)) - np.log(max(counts.sum(), 1.0))
    frames = []
    for layer in atlas.layers:
        following = tokens_spoken_of(atlas, layer).drop_nulls()
        memory = following["memory"].to_numpy()
        counted = np.bincount(memory, minlength=atlas.memories(layer))
        sums = np.bincount(memory, weights=log_p[following["token"].to_numpy()], minlength=len(counted))
        some = np.flatnonzero(counted)
        columns = {"memory": some.astype(np.int32), "unigram": sums[some] / counted[some]}
        frames.append(pl.DataFrame(columns).with_columns(layer=pl.lit(layer, pl.Int16)))
    return pl.concat(frames)
