"""Builds the table of an answer, and estimates that several questions share."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import NOTHING, AnyEstimate, Estimate, mean, order_statistic, share, widen
from mnemoscope.questions.question import EMPTY, EVERY, LITERAL, Claim, Number, Paper, Question

MEMORIES = "over memories (Wilson)"
LINEARISED = Number(
    "linearised_head",
    "share",
    "{validation_cases} at which the head's linear part, by which values are read, gives the model's own prediction",
)
"""Beside every question about values, of a head with a transform: where it is low, their words mean little."""
HELD = (
    Number("held_where_masked", "share", "of those asked, memories that fire above half where the token is masked"),
    Number("asked_where_masked", "share", "memories with a target that were asked with their trigger's token masked"),
)
"""Beside every question about values, of a model that reads sentences whole: whose values may not just copy."""

ByLayer = Mapping[int | None, Estimate]
"""One estimate per layer; the key None holds the one over all layers."""


def question_of_values(name: str, *, paper: Paper, numbers: tuple[Number, ...], **declared: Any) -> Question:
    """A question about values, with the numbers and claims that stand beside each of them."""
    beside = (LINEARISED, *HELD)
    claims = (
        Claim(f"{one.label} (not asked by the paper)", "-", one.name, "share", counted=True, optional=True)
        for one in beside
    )
    return Question(
        name,
        paper=replace(paper, claims=(*paper.claims, *claims)),
        numbers=(*numbers, *beside),
        nothing="no memory of this atlas has a target; mine more text",
        interval=MEMORIES,
        projections=("values",),
        why="The paper takes softmax(v E^T) of the value alone, and as target what followed the first trigger; a model"
        " with a norm before its head reads the value through that norm, so ours folds it in, and takes {target_taken}",
        held=True,
        **declared,
    )


class AnswerBuilder:
    """Collects rows of declared numbers. `keys` has the names and types of the question's own key columns, which are
    null by default.
    """

    def __init__(self, question: Question, keys: Mapping[str, Any] | None = None) -> None:
        self._names = {number.name for number in question.numbers}
        self._keys = dict(keys or {})
        self._rows: list[tuple[Any, ...]] = []
        self.prefix = ""

    def literal(self) -> "AnswerBuilder":
        """The same answer, for numbers by the paper's own formula: of those added the question's `literal` ones are
        kept.
        """
        return self._beside(LITERAL)

    def every(self) -> "AnswerBuilder":
        """The same, for numbers over all memories."""
        return self._beside(EVERY)

    def _beside(self, prefix: str) -> "AnswerBuilder":
        builder = copy(self)
        builder.prefix = prefix
        return builder

    def add(self, layer: int | None, name: str, estimate: Estimate, **keys: Any) -> None:
        """`layer` None is a total; a value that is not finite becomes null."""
        name = self.prefix + name
        if name not in self._names and self.prefix:
            return
        if name not in self._names:
            raise ValueError(f"{name} is not a number that the question declares")
        if unknown := keys.keys() - self._keys.keys():
            raise ValueError(f"{name}: {sorted(unknown)} are not columns of this answer")
        numbers = (_finite(estimate.value), int(estimate.count), _finite(estimate.low), _finite(estimate.high))
        self._rows.append((layer, name, *numbers, *(keys.get(column) for column in self._keys)))

    def add_named(self, layer: int | None, estimates: Mapping[str, Estimate], *, prefix: str = "", **keys: Any) -> None:
        for name, estimate in estimates.items():
            self.add(layer, prefix + name, estimate, **keys)

    def add_layers(self, name: str, estimates: ByLayer, *, total: bool = True) -> None:
        for layer, estimate in estimates.items():
            if layer is not None or total:
                self.add(layer, name, estimate)

    def frame(self) -> pl.DataFrame:
        """Columns: `schema.ANSWER_COLUMNS`, then the own ones. Layers in insertion order, then totals."""
        rows = sorted(self._rows, key=lambda row: row[0] is None)
        return pl.DataFrame(rows, schema=dict(EMPTY.schema) | self._keys, orient="row")

    def frame_of_values(self, atlas: Atlas) -> pl.DataFrame:
        """The frame of a question about values."""
        questions = atlas.manifest.questions
        if questions is not None and questions.linearised_agrees is not None:
            self.add(None, LINEARISED.name, share(questions.linearised_agrees, questions.prefixes))
        return self.frame()


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def complement(estimate: AnyEstimate) -> AnyEstimate:
    value, high, low = (None if end is None else 1 - end for end in (estimate.value, estimate.low, estimate.high))
    return replace(estimate, value=value, low=low, high=high)


def least_layer(estimates: ByLayer) -> tuple[int | None, Estimate]:
    """The layer with the smallest estimate, of ties the lowest; (None, NOTHING) if none is defined."""
    defined = [(one.value, layer) for layer, one in estimates.items() if layer is not None and one.value is not None]
    if not defined:
        return None, NOTHING
    layer = min(defined)[1]
    return layer, estimates[layer]


def share_first(ranks: pl.Series) -> Estimate:
    return share(int((ranks == 0).sum()), len(ranks))


def estimate_keys(rows: pl.DataFrame) -> dict[str, Estimate]:
    """Agreement of keys with the last tokens of their own triggers and of another memory's (control). On a short text:
    agreement of keys, and of shuffled keys, with the token that activates them most. `rows` are of `roles`, or of
    `key_readings` under one lens. Memories without a trigger are left out.
    """
    triggered, other = (rows.filter(pl.col(f"{name}_rank").is_not_null()) for name in ("trigger", "control"))
    on_text, shuffled = (share_first(rows[name].drop_nulls()) for name in ("text_rank", "shuffled_rank"))
    return {
        "agreement": share_first(triggered["trigger_rank"]),
        "control": share_first(other["control_rank"]),
        "on_text": on_text,
        "shuffled": shuffled,
        "above_control": difference(on_text, shuffled),
        "rank": order_statistic(triggered["trigger_rank"].sort().to_numpy(), 0.5),
        "control_rank": order_statistic(other["control_rank"].sort().to_numpy(), 0.5),
        "found": mean(triggered["triggers_found"]),
        "control_found": mean(other["controls_found"]),
    }


def difference(estimate: Estimate, other: Estimate) -> Estimate:
    """The difference of two independent samples; the interval is Newcombe's (1998). For positively correlated samples
    it is conservative.
    """
    ends = estimate.value, estimate.low, estimate.high, other.value, other.low, other.high
    if any(end is None for end in ends):
        return NOTHING
    value, low, high, other_value, other_low, other_high = (float(end) for end in ends if end is not None)
    below = math.hypot(value - low, other_high - other_value)
    above = math.hypot(high - value, other_value - other_low)
    distance = value - other_value
    return Estimate(distance, estimate.count, distance - below, distance + above)


def share_above(estimates: Sequence[Estimate], bound: float) -> Estimate:
    """The share of layers whose estimate is above the bound; one without a value is not. Layers are not a sample, so
    the interval runs from the share clearly above to the share not clearly below, by each layer's interval, corrected
    for the number of layers (Bonferroni).
    """
    if not estimates:
        return NOTHING
    count = len(estimates)
    corrected = [widen(one, count) for one in estimates]
    above = sum(one.low is not None and one.low > bound for one in corrected)
    below = sum(one.high is not None and one.high <= bound for one in corrected)
    seen = sum(one.value is not None and one.value > bound for one in estimates)
    return Estimate(seen / count, count, above / count, 1 - below / count)
