"""What the paper's figures show without a number of their own: ours in words, and whether it is shown here.

Decided by intervals, as the claims are (`verdicts`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mnemoscope.figures.answered import Answered
from mnemoscope.figures.verdicts import (
    Verdict,
    corrected,
    difference,
    every,
    few_documents,
    judged,
    judged_above,
)
from mnemoscope.figures.words import DASH, interval, spoken

Answers = Mapping[str, Answered]
Found = tuple[str, str, Verdict | None]
"""Our result in words, its interval in words, and the verdict; None where there is nothing to judge."""

NOTHING: Found = (DASH, "", None)


@dataclass(frozen=True)
class Finding:
    """A result that the paper states without a number of its own, the rule in words, and what an atlas says of it."""

    text: str
    paper: str
    rule: str
    test: Callable[[Answers], Found]

    def found(self, question: str, answers: Answers) -> Found:
        """What the answers say; the question's own answer decides nothing if it is of too few documents."""
        if answers[question].missing:
            return NOTHING
        ours, between, verdict = self.test(answers)
        return ours, between, "undecided" if verdict is not None and few_documents(answers[question]) else verdict


def _ranks(answers: Answers) -> Found:
    answer = answers["value_rank"]
    lower, upper = answer.mean("q50", answer.lower), answer.mean("q50", answer.upper)
    row = answer.total("upper_ranks_higher")
    if row is None or lower is None or upper is None:
        return NOTHING
    ours = f"higher in {spoken(row.value, 'share')} of pairs; median rank {lower:,.0f} below, {upper:,.0f} above"
    return ours, interval(row.low, row.high, "share"), judged_above(row, 0.5)


def _confident(answers: Answers) -> Found:
    answer = answers["value_confidence"]
    first, last = answer.total("decile_0"), answer.total("decile_9")
    if first is None or last is None:
        return NOTHING
    more = difference(last, first)
    ours = f"{spoken(first.value, 'share')} to {spoken(last.value, 'share')}: {spoken(more.value, 'share')} more"
    return ours, interval(more.low, more.high, "share"), judged_above(more, 0)


def _dip(answers: Answers) -> Found:
    answer, kinds = answers["layer_activity"], answers["key_patterns"]
    least, rows = answer.total("least_depth"), kinds.rows("shallow_of_one_kind")
    over = next((row.layer for row in rows if row.value < 0.5), None)
    if least is None or not rows:
        return NOTHING
    fewest = round(least.value * answer.depth) - 1
    if over is None:
        return f"fewest in layer {fewest}; semantic patterns never overtake", "", None
    ours = f"fewest in layer {fewest}; semantic ahead from layer {over}"
    if least.low is None or least.high is None:
        return ours, "", "undecided"
    places = [round(end * answer.depth) - 1 for end in (least.low, least.high)]
    dips = [layer for layer in answer.layers if places[0] <= layer <= places[1]]
    # The first layer that may be ahead, up to the first that surely is: twice as many looks, for there are two sets.
    sure = corrected(rows, 2 * len(rows))
    maybe = [row.layer for row in sure if row.low is None or row.low < 0.5]
    ahead = next((row.layer for row in sure if row.high is not None and row.high < 0.5), None)
    between = f"fewest in one of {dips[0]}-{dips[-1]}, ahead from one of {maybe[0]}-{'?' if ahead is None else ahead}"
    crossings = [layer for layer in maybe if layer is not None and (ahead is None or layer <= ahead)]
    inner = answer.layers[1:-1]
    near = [dip in inner and abs(dip - crossing) <= 1 for dip in dips for crossing in crossings]
    if ahead is not None and all(near):
        return ours, between, "yes"
    return ours, between, "undecided" if any(near) else "no"


def _growth(answers: Answers) -> Found:
    answer = answers["refinement_match"]
    more = answer.total("match_growth_upper_minus_lower")
    rows = answer.rows("match")
    if more is None or not answer.upper:
        return NOTHING
    turn, first, last = answer.at("match", answer.upper[0]), rows[0], rows[-1]
    if turn is None or turn.layer is None or first.layer is None or last.layer is None:
        return NOTHING
    below = 100 * (turn.value - first.value) / (turn.layer - first.layer)
    above = 100 * (last.value - turn.value) / (last.layer - turn.layer)
    ours = f"{below:+.1f} points a layer up to layer {turn.layer}, {above:+.1f} from there"
    said = "" if more.low is None or more.high is None else f"[{100 * more.low:+.1f}, {100 * more.high:+.1f}]"
    return ours, said and f"difference {said}", judged_above(more, 0)


def _rising(answers: Answers) -> Found:
    answer = answers["refinement_confidence"]
    rows, whole, steps = answer.rows("probability"), answer.total("rise"), answer.total("rising_steps")
    if whole is None or steps is None:
        return NOTHING
    ends = f"{spoken(rows[0].value, 'share')} to {spoken(rows[-1].value, 'share')}"
    ours = f"{ends}, up in {round(steps.value * steps.count)} of {steps.count} steps"
    said = interval(whole.low, whole.high, "share")
    if steps.low is not None and steps.high is not None:
        said += f", {round(steps.low * steps.count)} to {round(steps.high * steps.count)} steps"
    return ours, said, every([judged_above(whole, 0), judged(steps, least=0.75)])


FINDINGS: dict[str, Finding] = {
    "value_rank": Finding(
        "values rank the target higher in the upper layers",
        "yes",
        "of pairs of an upper and a lower layer's memory, the upper one ranks its target higher in more than half",
        _ranks,
    ),
    "value_confidence": Finding(
        "agreement grows with the value's largest probability",
        "yes",
        "in the most confident tenth minus in the least confident: above 0",
        _confident,
    ),
    "layer_activity": Finding(
        "activity dips where semantic patterns overtake shallow ones",
        "at layer 10 of 16",
        "every layer that may have the fewest is within one of every layer where semantic patterns may overtake, and at"
        " no end; corrected for all layers",
        _dip,
    ),
    "refinement_match": Finding(
        "matches grow fast in the upper layers",
        "from layer 10",
        "growth a layer minus that in the layers below, of the same prefixes: above 0",
        _growth,
    ),
    "refinement_confidence": Finding(
        "the residual's confidence in the final token grows",
        "through all layers",
        "higher at the end, and up in at least three quarters of the steps, each step's interval corrected for their"
        " number",
        _rising,
    ),
}
"""By the question behind the figure."""
