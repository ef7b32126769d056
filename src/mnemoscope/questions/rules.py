"""Tests that the rules of the paper's claims are made of, each of the intervals behind a number.

Every claim about the paper's layers 11-16 is asked of the upper layers, `layer >= ceil(10 L / 16)`, and of the others
where it speaks of layers 1-10. The rules themselves stand beside the claims, in the questions.
"""

from collections.abc import Callable

from mnemoscope.questions.answered import Answered, Row
from mnemoscope.questions.verdicts import Verdict, corrected, every, judged, judged_above

Test = Callable[[Answered, Row], Verdict | None]
"""What an answer says of a claim, by the row of the number tested; None where that cannot be asked of it."""


def at_least(bound: float) -> Test:
    """The number is the bound or more."""
    return lambda answer, row: judged(row, least=bound)


def at_most(bound: float) -> Test:
    """The number is the bound or less."""
    return lambda answer, row: judged(row, most=bound)


def between(low: float, high: float) -> Test:
    """The number lies between the two, ends included."""
    return lambda answer, row: judged(row, least=low, most=high)


def above(bound: float) -> Test:
    """The number is more than the bound."""
    return lambda answer, row: judged_above(row, bound)


def each_layer_between(name: str, low: float, high: float) -> Test:
    """The number of that name lies between the two in every layer; each interval corrected for their number."""

    def test(answer: Answered, row: Row) -> Verdict | None:
        return every(judged(one, least=low, most=high) for one in corrected(answer.rows(name)))

    return test
