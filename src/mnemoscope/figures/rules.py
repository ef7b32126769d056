"""When a claim of the paper counts as shown: a rule by the total behind it, in words and as a test of intervals.

Every claim about the paper's layers 11-16 is asked of the upper layers, `layer >= ceil(10 L / 16)`, and of the others
where it speaks of layers 1-10. Where no rule would be fair, there is none. A rule may test another number of the answer
than the one that the paper states (`by`): that number stands beside its words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mnemoscope.figures.answered import Answered, Row
from mnemoscope.figures.verdicts import Verdict, corrected, every, few_documents, judged, judged_above
from mnemoscope.figures.words import form_of, interval, spoken

Test = Callable[[Answered, Row], Verdict | None]
"""What an answer says of a claim, by the row of the number tested; None where that cannot be asked of it."""


@dataclass(frozen=True)
class Rule:
    """When a claim counts as shown, in words and as a test of its number, or of the total `by`."""

    words: str
    test: Test
    by: str = ""

    def verdict(self, answer: Answered, row: Row) -> Verdict | None:
        """The verdict on the claim behind this row; None where the number tested does not exist."""
        tested = answer.total(self.by) if self.by else row
        if tested is None:
            return None
        found = self.test(answer, tested)
        return "undecided" if found is not None and few_documents(answer) else found

    def said(self, answer: Answered) -> str:
        """The words, with the number tested if it is not the one that the paper states."""
        tested = answer.total(self.by) if self.by else None
        if tested is None:
            return self.words
        form = form_of(tested.name)
        return f"{self.words}: {spoken(tested.value, form)} {interval(tested.low, tested.high, form)}".rstrip()


def _least(bound: float) -> Test:
    return lambda answer, row: judged(row, least=bound)


def _between(low: float, high: float) -> Test:
    return lambda answer, row: judged(row, least=low, most=high)


def _above(bound: float) -> Test:
    return lambda answer, row: judged_above(row, bound)


def _at_most(bound: float) -> Test:
    return lambda answer, row: judged(row, most=bound)


def _more_than_their_part(answer: Answered, row: Row) -> Verdict | None:
    """More than the share of all memories that lie in the upper layers."""
    memories = {found.layer: found.count for found in answer.rows("max_probability")}
    upper = sum(memories.get(layer, 0) for layer in answer.upper)
    whole = sum(memories.values())
    return judged_above(row, upper / whole) if 0 < upper < whole else None


def _each_layer(name: str, low: float, high: float) -> Test:
    def test(answer: Answered, row: Row) -> Verdict | None:
        return every(judged(one, least=low, most=high) for one in corrected(answer.rows(name)))

    return test


RULES: dict[str, Rule] = {
    "keys_with_pattern": Rule("at least 95 % of the keys", _least(0.95)),
    "covered": Rule("at least 65 %", _least(0.65)),
    "shallow_leads_lower": Rule(
        "in at least two thirds of these layers more prefixes are under shallow patterns alone than under semantic ones"
        " alone; each layer's interval corrected for their number",
        _least(2 / 3),
    ),
    "semantic_leads_upper": Rule(
        "in at least two thirds of these layers more prefixes are under semantic patterns alone than under shallow ones"
        " alone; each layer's interval corrected for their number",
        _least(2 / 3),
    ),
    "last_hurts_most": Rule(
        "in at least three quarters of the layers the median without the last token is below the other two; each"
        " layer's interval corrected for their number",
        _least(0.75),
    ),
    "last_median_upper_minus_lower": Rule("above 0", _above(0)),
    "agreement_lower": Rule(
        "at most a third of the best layer's, intervals corrected for all layers; the difference",
        _at_most(0),
        by="agreement_lower_above_third",
    ),
    "agreement_best_layer": Rule(
        "some layer is above its own shuffled targets, and chance, with an interval corrected for all layers; the"
        " greatest difference",
        _above(0),
        by="agreement_best_above_baseline",
    ),
    "top100_upper_layers": Rule("more than these layers' part of all memories", _more_than_their_part),
    "active": Rule(
        "10 to 50 % in every layer, each interval corrected for their number", _each_layer("active", 0.1, 0.5)
    ),
    "least_depth": Rule(
        "every layer that may have the fewest, the same prefixes compared and corrected for all layers, is within an"
        " eighth of the depth of that",
        _between(10 / 16 - 1 / 8, 10 / 16 + 1 / 8),
    ),
    "zero_agreement_least_layer": Rule(
        "at least 68 % in every layer, each interval corrected for their number", _each_layer("zero_agreement", 0.68, 1)
    ),
    "agreeing_stop_word": Rule(
        "more often than over all prefixes; the difference", _above(0), by="agreeing_stop_word_above_all"
    ),
    "agreeing_short": Rule(
        "more often than over all prefixes; the difference", _above(0), by="agreeing_short_above_all"
    ),
    "match_lower_third": Rule("between 25 % and 42 %", _between(0.25, 0.42)),
    "unchanged": Rule("at least three quarters", _least(0.75)),
    "composition_of_changed": Rule("at least two thirds of the changes", _least(2 / 3)),
}
"""By the name of the total behind a claim."""
