"""Figure 6, Table 2: agreement of values by their largest probability.

That probability grows with the value's norm. So the norm is reported, and all numbers are repeated for the value at
work (definitions.md section 2).
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import Estimate, mean, mean_share, share
from mnemoscope.questions.answer_builder import AnswerBuilder, question_of_values
from mnemoscope.questions.question import LITERAL, Answer, Claim, Finding, Number, Outcome, Paper, Row, Verdict
from mnemoscope.questions.sources import by_layer, tokens_spoken_of, values, values_asked
from mnemoscope.questions.verdicts import NOTHING_FOUND, difference, is_above

DECILES = tuple(
    Number(f"decile_{decile}", "share", table="by tenth of the memories, least confident first") for decile in range(10)
)
WORKING_DECILES = tuple(
    Number(f"working_{one.name}", "share", table="by tenth, least confident at typical activation first")
    for one in DECILES
)
MOST = 100
TRIGGERS = 50
CONFIDENT = 0.1
"""The largest probability from which a value at its typical activation counts as confident."""


def _above_share_of_memories(answer: Answer, row: Row) -> Verdict | None:
    memories = {one.layer: one.count for one in answer.rows("max_probability")}
    upper = sum(memories.get(layer, 0) for layer in answer.upper)
    whole = sum(memories.values())
    return is_above(row, upper / whole) if 0 < upper < whole else None


def _grows(answers: Mapping[str, Answer], prefix: str) -> Outcome:
    answer = answers["value_confidence"]
    first, last = (answer.total(prefix + decile.name) for decile in (DECILES[0], DECILES[-1]))
    if first is None or last is None:
        return NOTHING_FOUND
    more = difference(last, first)
    return f"{first.text} to {last.text}: {more.text} more", more.interval, is_above(more, 0)


QUESTION = question_of_values(
    "value_confidence",
    title="whether confident values are right",
    paper=Paper(
        figure="Figure 6, Table 2",
        section="4",
        question="Do values that are sure of a token agree with the triggers of their memory more often?",
        claims=(
            Claim(
                "of the 100 most confident values, in layers 11-16",
                "97 of 100",
                "top100_upper_layers",
                "share",
                "more than these layers' part of all memories",
                _above_share_of_memories,
            ),
            Claim(
                "of the 100 most confident values, right after at least one of their 50 triggers",
                "46 of 100",
                "top100_with_trigger",
                "share",
            ),
        ),
    ),
    finding=Finding(
        "agreement grows with the value's largest probability",
        "yes",
        "in the most confident tenth minus in the least confident: above 0",
        _grows,
        literal=True,
    ),
    numbers=(
        Number("working_probability", "share", "top probability at typical activation, mean", terminal="number"),
        Number("working_probability_best", "share", "top probability at typical activation, best", terminal="number"),
        Number("working_confident", "share", f"values with a probability of {CONFIDENT} or more at typical activation"),
        Number("max_probability", "share", "top probability at coefficient 1 (the paper's), mean", terminal="number"),
        Number("max_probability_best", "share", "top probability at coefficient 1, best", terminal="number"),
        Number("value_norm", "number", "norm of the value, mean"),
        *DECILES,
        *WORKING_DECILES,
        Number("top100_upper_layers", "share", "of the 100 most confident values, in the upper layers"),
        Number("top100_with_trigger", "share", "of the 100, right after at least one trigger"),
        Number("top100_trigger_share", "share", "of the 100, share of triggers they are right after, mean"),
        Number("top100_agreement", "share", "of the 100, agreement"),
        Number("top100_value_norm", "number", "of the 100, norm of the value, mean"),
        Number("working_top100_upper_layers", "share", "of the 100 at typical activation, in the upper layers"),
        Number("working_top100_with_trigger", "share", "of these 100, right after at least one trigger"),
        Number("working_top100_trigger_share", "share", "of these 100, share of triggers they are right after, mean"),
        Number("working_top100_agreement", "share", "of these 100, agreement"),
        Number("all_value_norm", "number", "norm of all values, mean"),
    ),
    main="max_probability",
    headline=(
        *("working_probability", "working_probability_best", "working_confident"),
        *("max_probability", "max_probability_best", "every_max_probability", "value_norm"),
    ),
    layer_page=("working_probability", "working_confident", "max_probability"),
    literal=(
        *("max_probability", "max_probability_best", *(one.name for one in DECILES)),
        *("top100_upper_layers", "top100_with_trigger", "top100_trigger_share", "top100_agreement"),
    ),
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Own columns of the deciles: `decile`, `lowest` and `highest` probability in it, mean `value_norm`. Raises
    AtlasUnfinished if values or triggers are missing.
    """
    keys = {"decile": pl.Int16, "lowest": pl.Float64, "highest": pl.Float64, "value_norm": pl.Float64}
    builder = AnswerBuilder(QUESTION, keys)
    rows = values(atlas)
    for adding, read in values_asked(atlas, builder, rows):
        for layer in atlas.layers:
            here = read.filter(pl.col("layer") == layer)
            _add_probability(adding, layer, "max_probability", here["max_probability"])
            adding.add(layer, "value_norm", mean(here["value_norm"]))
        _add_deciles(adding, read, DECILES, by="max_probability")
        _add_most_confident(adding, atlas, read, by="max_probability")
        if adding.prefix != LITERAL:
            _add_at_work(adding, atlas, read)
    builder.add(None, "all_value_norm", mean(rows["value_norm"]))
    return builder.frame_of_values(atlas)


def _add_at_work(builder: AnswerBuilder, atlas: Atlas, rows: pl.DataFrame) -> None:
    at_work = rows.filter(pl.col("working_probability").is_not_null())
    if at_work.is_empty():
        return
    for of, here in by_layer(atlas, rows):
        probability = here["working_probability"].cast(pl.Float64)
        if of is not None:
            _add_probability(builder, of, "working_probability", probability)
        # A memory that never fires is not confident.
        builder.add(of, "working_confident", share(int((probability >= CONFIDENT).sum()), here.height))
    _add_deciles(builder, at_work, WORKING_DECILES, by="working_probability")
    _add_most_confident(builder, atlas, at_work, by="working_probability", prefix="working_")


def _add_probability(builder: AnswerBuilder, layer: int, name: str, probability: pl.Series) -> None:
    """The mean of the largest probabilities that are known, and the largest of all."""
    defined = probability.cast(pl.Float64).drop_nulls()
    builder.add(layer, name, mean_share(defined))
    builder.add(layer, f"{name}_best", Estimate(defined.max(), len(defined)))  # type: ignore[arg-type]


def _add_deciles(builder: AnswerBuilder, rows: pl.DataFrame, numbers: tuple[Number, ...], *, by: str) -> None:
    """Row i of n, by rising probability, is in decile floor(10 i / n)."""
    ordered = rows.filter(pl.col("target").is_not_null()).sort(by, "layer", "memory")
    place = np.arange(ordered.height) * len(numbers) // max(1, ordered.height)
    for decile, number in enumerate(numbers):
        part = ordered.filter(place == decile)
        builder.add(
            None,
            number.name,
            share(int(part["agrees"].sum()), part.height),
            decile=decile,
            lowest=part[by].cast(pl.Float64).min(),
            highest=part[by].cast(pl.Float64).max(),
            value_norm=mean(part["value_norm"]).value,
        )


def _add_most_confident(builder: AnswerBuilder, atlas: Atlas, rows: pl.DataFrame, *, by: str, prefix: str = "") -> None:
    best = rows.sort([by, "layer", "memory"], descending=[True, False, False]).head(MOST)
    right_shares: list[float] = []  # of each the share of triggers that it is right after
    for layer in best["layer"].unique().sort().to_list():
        here = best.filter(pl.col("layer") == layer).select("memory", "top")
        right = tokens_spoken_of(atlas, layer, best=TRIGGERS).join(here, on="memory")
        right = right.select("memory", right=(pl.col("token") == pl.col("top")).fill_null(False))
        right_shares += right.group_by("memory").agg(pl.col("right").mean()).sort("memory")["right"].to_list()
    agrees = best["agrees"].drop_nulls()
    upper = best["layer"].is_in(list(atlas.upper_layers))
    estimates = {
        "top100_upper_layers": share(int(upper.sum()), best.height),
        "top100_with_trigger": share(sum(one > 0 for one in right_shares), best.height),
        "top100_trigger_share": mean_share(right_shares),
        "top100_agreement": share(int(agrees.sum()), len(agrees)),
    }
    builder.add_named(None, estimates, prefix=prefix)
    if not prefix:
        builder.add(None, "top100_value_norm", mean(best["value_norm"]))
