"""Figure 6, Table 2: are confident values right more often? Agreement by the value's largest probability.

A value's largest probability grows with its length, so the norm is reported beside it.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.intervals import Estimate, mean, share
from mnemoscope.questions.answer_builder import MEMORIES, NO_TARGET, AnswerBuilder
from mnemoscope.questions.question import Answer, Claim, Finding, Number, Outcome, Paper, Question, Row, Verdict
from mnemoscope.questions.sources import next_tokens, values
from mnemoscope.questions.verdicts import NOTHING_FOUND, difference, is_above

DECILES = tuple(
    Number(f"decile_{decile}", "share", table="by tenth of the memories, least confident first") for decile in range(10)
)
MOST = 100
TRIGGERS = 50


def _more_than_their_part(answer: Answer, row: Row) -> Verdict | None:
    """More than the share of all memories that lie in the upper layers."""
    memories = {found.layer: found.count for found in answer.rows("max_probability")}
    upper = sum(memories.get(layer, 0) for layer in answer.upper)
    whole = sum(memories.values())
    return is_above(row, upper / whole) if 0 < upper < whole else None


def _grows(answers: Mapping[str, Answer]) -> Outcome:
    """Whether the most confident tenth agrees more often than the least confident one."""
    answer = answers["value_confidence"]
    first, last = answer.total(DECILES[0].name), answer.total(DECILES[-1].name)
    if first is None or last is None:
        return NOTHING_FOUND
    more = difference(last, first)
    return f"{first.text} to {last.text}: {more.text} more", more.interval, is_above(more, 0)


QUESTION = Question(
    "value_confidence",
    title="whether confident values are right",
    paper=Paper(
        figure="Figure 6, Table 2", section="4",
        question="Do values that are sure of a token agree with the triggers of their memory more often?",
        claims=(
            Claim(
                "of the 100 most confident values, in layers 11-16", "97 of 100", "top100_upper_layers", "share",
                "more than these layers' part of all memories", _more_than_their_part,
            ),
            Claim(
                "of the 100 most confident values, right after at least one of their 50 triggers",
                "46 of 100", "top100_with_trigger", "share",
            ),
        ),
    ),
    finding=Finding(
        "agreement grows with the value's largest probability",
        "yes",
        "in the most confident tenth minus in the least confident: above 0",
        _grows,
    ),
    numbers=(
        Number("max_probability", "share", "largest probability, mean", terminal="number"),
        Number("max_probability_best", "share", "largest probability, best memory", terminal="number"),
        Number("value_norm", "number", "norm of the value, mean"),
        *DECILES,
        Number("top100_upper_layers", "share", "of the 100 most confident values, in the upper layers"),
        Number("top100_with_trigger", "share", "of the 100, right after at least one trigger"),
        Number("top100_trigger_share", "share", "of the 100, share of triggers they are right after, mean"),
        Number("top100_agreement", "share", "of the 100, agreement"),
        Number("top100_value_norm", "number", "of the 100, norm of the value, mean"),
        Number("all_value_norm", "number", "norm of all values, mean"),
    ),
    main="max_probability",
    headline=("max_probability", "max_probability_best", "value_norm"),
    layer_page=("max_probability",),
    nothing=NO_TARGET, interval=MEMORIES, projections=("values",),
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Per layer how sure the values are; in all agreement by decile of confidence, and the 100 most confident values.

    Own columns of the deciles: `decile`, `lowest` and `highest` probability in it, mean `value_norm`. Raises
    AtlasUnfinished if values or triggers are missing.
    """
    rows = values(atlas)
    own = {"decile": pl.Int16, "lowest": pl.Float64, "highest": pl.Float64, "value_norm": pl.Float64}
    found = AnswerBuilder(QUESTION, own)
    for layer in atlas.layers:
        here = rows.filter(pl.col("layer") == layer)
        probability = here["max_probability"].cast(pl.Float64)
        found.add(layer, "max_probability", mean(probability))
        best = float(probability.to_numpy().max()) if here.height else None
        found.add(layer, "max_probability_best", Estimate(best, here.height))
        found.add(layer, "value_norm", mean(here["value_norm"]))
    _add_deciles(found, rows)
    _add_most_confident(found, atlas, rows)
    found.add(None, "all_value_norm", mean(rows["value_norm"]))
    return found.frame()


def _add_deciles(found: AnswerBuilder, rows: pl.DataFrame) -> None:
    """Agreement within ten classes of equal size, by rising probability.

    Row i of n goes to decile 10 i / n, rounded down; equal probabilities are kept in order of layer and memory.
    """
    ordered = rows.filter(pl.col("target").is_not_null()).sort("max_probability", "layer", "memory")
    place = np.arange(ordered.height) * len(DECILES) // max(1, ordered.height)
    for decile, number in enumerate(DECILES):
        part = ordered.filter(place == decile)
        limits = part["max_probability"].cast(pl.Float64).to_list()
        found.add(
            None,
            number.name,
            share(int(part["agrees"].sum()), part.height),
            decile=decile,
            lowest=limits[0] if limits else None,
            highest=limits[-1] if limits else None,
            value_norm=mean(part["value_norm"]).value,
        )


def _add_most_confident(found: AnswerBuilder, atlas: Atlas, rows: pl.DataFrame) -> None:
    """The 100 values with the largest probability of all layers; of equal ones the lower layer, then memory."""
    best = rows.sort(["max_probability", "layer", "memory"], descending=[True, False, False]).head(MOST)
    hits, triggers = [], []
    for layer in best["layer"].unique().sort().to_list():
        here = best.filter(pl.col("layer") == layer).select("memory", "top")
        following = next_tokens(atlas, layer, best=TRIGGERS).join(here, on="memory")
        each = (
            following.group_by("memory")
            .agg(hits=(pl.col("next_token") == pl.col("top")).fill_null(False).sum(), triggers=pl.len())
            .sort("memory")
        )
        hits += each["hits"].to_list()
        triggers += each["triggers"].to_list()
    agrees = best["agrees"].drop_nulls()
    upper = best["layer"].is_in(list(atlas.upper_layers))
    found.add(None, "top100_upper_layers", share(int(upper.sum()), best.height))
    found.add(None, "top100_with_trigger", share(sum(hit > 0 for hit in hits), best.height))
    found.add(None, "top100_trigger_share", mean([hit / most for hit, most in zip(hits, triggers, strict=True)]))
    found.add(None, "top100_agreement", share(int(agrees.sum()), len(agrees)))
    found.add(None, "top100_value_norm", mean(best["value_norm"]))
