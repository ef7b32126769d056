"""Ours beside the paper: every result that its text states, our number, and by a stated rule whether it shows here.

The paper's figures are those of one model of 16 layers; a small model need not repeat them. A rule says when a result
counts as shown here, in words that are printed beside the verdict. Where no rule would be fair, there is no verdict.
Every claim about the paper's layers 11-16 is asked of the upper layers, `layer >= ceil(10 L / 16)`, and of the others
where it speaks of layers 1-10.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from mnemoscope.analyses import Claim
from mnemoscope.figures.answered import Answered, Row
from mnemoscope.figures.words import DASH, Form, interval, layers_spoken, spoken

Test = Callable[[Answered, Row], bool | None]
"""Whether a result is shown; None where that cannot be said."""


@dataclass(frozen=True)
class Compared:
    """One line of the comparison, in words; `shown` is yes, no or a dash."""

    question: str
    figure: str
    text: str
    paper: str
    ours: str
    interval: str
    shown: str
    rule: str


@dataclass(frozen=True)
class Rule:
    """When a claim counts as shown, in words and as a test of its number."""

    words: str
    test: Test


def _least(bound: float) -> Test:
    return lambda answer, row: row.value >= bound


def _between(low: float, high: float) -> Test:
    return lambda answer, row: low <= row.value <= high


def _above(*names: str) -> Test:
    """The row's interval lies above the numbers of these names, their intervals included."""

    def test(answer: Answered, row: Row) -> bool | None:
        others = [answer.total(name) for name in names]
        if row.low is None or any(other is None for other in others):
            return None
        return all(row.low > (other.value if other.high is None else other.high) for other in others if other)

    return test


def _above_zero(answer: Answered, row: Row) -> bool | None:
    return (row.value if row.low is None else row.low) > 0


def _third_of_best(answer: Answered, row: Row) -> bool | None:
    best = answer.total("agreement_best_layer")
    return None if best is None or best.value == 0 else row.value <= best.value / 3


def _more_than_their_part(answer: Answered, row: Row) -> bool | None:
    if row.low is None or not answer.upper or not answer.lower:
        return None
    return row.low > len(answer.upper) / len(answer.layers)


def _each_layer(low: float, high: float) -> Test:
    return lambda answer, row: all(low <= one.value <= high for one in answer.rows(row.name))


RULES: dict[str, Rule] = {
    "keys_with_pattern": Rule("at least 95 % of the keys", _least(0.95)),
    "covered": Rule("at least 65 %", _least(0.65)),
    "shallow_leads_lower": Rule("in at least two thirds of these layers", _least(2 / 3)),
    "semantic_leads_upper": Rule("in at least two thirds of these layers", _least(2 / 3)),
    "last_hurts_most": Rule("in at least three quarters of the layers", _least(0.75)),
    "last_median_upper_minus_lower": Rule("above 0, with its interval", _above_zero),
    "agreement_lower": Rule("at most a third of the best layer's", _third_of_best),
    "agreement_best_layer": Rule(
        "its interval lies above shuffled targets and chance", _above("shuffled_targets", "chance")
    ),
    "top100_upper_layers": Rule("more than these layers' part of all layers, with its interval", _more_than_their_part),
    "active": Rule("10 to 50 % in every layer", _each_layer(0.1, 0.5)),
    "least_depth": Rule("within an eighth of the depth of that", _between(10 / 16 - 1 / 8, 10 / 16 + 1 / 8)),
    "zero_agreement_least_layer": Rule("at least 68 %", _least(0.68)),
    "agreeing_stop_word": Rule("more often than over all prefixes, intervals apart", _above("all_stop_word")),
    "agreeing_short": Rule("more often than over all prefixes, intervals apart", _above("all_short")),
    "match_lower_third": Rule("between 25 % and 42 %", _between(0.25, 0.42)),
    "unchanged": Rule("at least three quarters", _least(0.75)),
    "composition_of_changed": Rule("at least two thirds of the changes", _least(2 / 3)),
}
"""By the name of the total behind a claim."""


def compared(answers: Mapping[str, Answered]) -> list[Compared]:
    """Every claim of the paper with our number, in the paper's order; after those of a figure, what else it found."""
    lines: list[Compared] = []
    for answer in answers.values():
        lines += [_claim(answer, claim) for claim in answer.paper.claims]
        if finding := FINDINGS.get(answer.question):
            lines.append(_finding(answer, finding, answers))
    return lines


def _claim(answer: Answered, claim: Claim) -> Compared:
    row, rule = answer.total(claim.name), RULES.get(claim.name)
    where = answer.question, answer.paper.figure, claim.text, claim.paper
    words = "" if rule is None else rule.words
    if row is None:
        return Compared(*where, ours=DASH, interval="", shown=DASH, rule=words)
    form: Form = claim.form
    verdict = None if rule is None else rule.test(answer, row)
    layer = row.own.get("at_layer", row.own.get("best_layer"))
    ours = spoken(row.value, form) + ("" if layer is None else f" (layer {layer})")
    return Compared(*where, ours, interval(row.low, row.high, form), _said(verdict), words)


def _said(verdict: bool | None) -> str:
    return DASH if verdict is None else "yes" if verdict else "no"


@dataclass(frozen=True)
class Finding:
    """A result that the paper states without a number of its own: ours in words, and whether it is shown."""

    text: str
    paper: str
    rule: str
    found: Callable[[Mapping[str, Answered]], tuple[str, bool | None]]


def _finding(answer: Answered, finding: Finding, answers: Mapping[str, Answered]) -> Compared:
    ours, verdict = (DASH, None) if answer.missing else finding.found(answers)
    return Compared(
        answer.question, answer.paper.figure, finding.text, finding.paper, ours, "", _said(verdict), finding.rule
    )


def _ranks(answers: Mapping[str, Answered]) -> tuple[str, bool | None]:
    answer = answers["value_rank"]
    lower, upper = answer.mean("q50", answer.lower), answer.mean("q50", answer.upper)
    if lower is None or upper is None:
        return DASH, None
    return f"median rank {lower:,.0f} below, {upper:,.0f} above", upper < lower


def _confident(answers: Mapping[str, Answered]) -> tuple[str, bool | None]:
    answer = answers["value_confidence"]
    first, last = answer.total("decile_0"), answer.total("decile_9")
    if first is None or last is None or first.high is None or last.low is None:
        return DASH, None
    return f"{spoken(first.value, 'share')} to {spoken(last.value, 'share')}", last.low > first.high


def _dip(answers: Mapping[str, Answered]) -> tuple[str, bool | None]:
    answer, kinds = answers["layer_activity"], answers["key_patterns"]
    rows = answer.rows("active")
    pairs = [(row.layer, row.value, kinds.at("semantic", row.layer or 0)) for row in kinds.rows("shallow")]
    over = [layer for layer, shallow, semantic in pairs if semantic is not None and semantic.value > shallow]
    least = min(rows, key=lambda row: row.value).layer
    if not over or least is None or over[0] is None:
        return f"fewest in layer {least}; semantic patterns never overtake", None
    inner = rows[0].layer != least and rows[-1].layer != least
    return f"fewest in layer {least}; semantic ahead from layer {over[0]}", inner and abs(least - over[0]) <= 1


def _growth(answers: Mapping[str, Answered]) -> tuple[str, bool | None]:
    answer = answers["refinement_match"]
    rows = answer.rows("match")
    turn = answer.at("match", answer.upper[0]) if answer.upper else None
    if turn is None or turn.layer is None or len(answer.lower) < 1 or len(answer.upper) < 2:
        return DASH, None
    first, last = rows[0], rows[-1]
    assert first.layer is not None
    assert last.layer is not None
    below = (turn.value - first.value) / (turn.layer - first.layer)
    above = (last.value - turn.value) / (last.layer - turn.layer)
    said = f"{100 * below:+.1f} points a layer up to layer {turn.layer}, {100 * above:+.1f} from there"
    return said, above > below


def _rising(answers: Mapping[str, Answered]) -> tuple[str, bool | None]:
    rows = answers["refinement_confidence"].rows("probability")
    if len(rows) < 2:
        return DASH, None
    up = sum(b.value > a.value for a, b in pairwise(rows))
    said = f"{spoken(rows[0].value, 'share')} to {spoken(rows[-1].value, 'share')}, up in {up} of {len(rows) - 1} steps"
    return said, rows[-1].value > rows[0].value and up >= 0.75 * (len(rows) - 1)


FINDINGS: dict[str, Finding] = {
    "value_rank": Finding(
        "values rank the target higher in the upper layers",
        "yes",
        "a lower median rank there, mean over layers",
        _ranks,
    ),
    "value_confidence": Finding(
        "agreement grows with the value's largest probability",
        "yes",
        "most confident tenth above the least, intervals apart",
        _confident,
    ),
    "layer_activity": Finding(
        "activity dips where semantic patterns overtake shallow ones",
        "at layer 10 of 16",
        "fewest active within one layer of that, and not at an end",
        _dip,
    ),
    "refinement_match": Finding(
        "matches grow fast in the upper layers", "from layer 10", "faster than in the layers below", _growth
    ),
    "refinement_confidence": Finding(
        "the residual's confidence in the final token grows",
        "through all layers",
        "higher at the end, and up in at least three quarters of the steps",
        _rising,
    ),
}


def upper_spoken(answer: Answered) -> str:
    """Which layers the upper ones are here, in words."""
    if not answer.upper:
        return "none of the mined layers is an upper one"
    return f"the upper layers are {layers_spoken(answer.upper)}"
