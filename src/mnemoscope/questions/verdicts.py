"""Yes, no, or undecided: what a 95 % interval says about a claim, and the tests that rules are made of.

Yes only if the whole interval lies on the claim's side, no only if all of it lies on the other; in between, and where
there is no interval, the numbers do not decide. So a claim that is false is called shown in at most 5 % of cases, as
far as intervals hold. Where a claim is about many layers, the interval of each is corrected for their number first, so
that all of them hold at once (Bonferroni).

Every claim about the paper's layers 11-16 is asked of the upper layers, `layer >= ceil(10 L / 16)`, and of the others
where it speaks of layers 1-10. The rules themselves stand beside the claims, in the questions.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mnemoscope.foundation.formatting import DASH
from mnemoscope.foundation.intervals import widen
from mnemoscope.questions.question import Answer, Outcome, Row, Verdict

NOTHING_FOUND: Outcome = (DASH, "", None)

FEWEST_DOCUMENTS = 10
"""Documents of which a bootstrap says how sure a number is; with fewer, its interval is too short to decide by."""

UNTRAINED = "an untrained model may answer yes"
"""What is said of a comparison that credits nothing to training."""

Test = Callable[[Answer, Row], Verdict | None]
"""What an answer says of a claim, by the row of the number tested; None where that cannot be asked of it."""


def is_between(row: Row, *, least: float = -math.inf, most: float = math.inf) -> Verdict:
    """Whether the number lies between the two, ends included."""
    if row.low is None or row.high is None:
        return "undecided"
    if row.low >= least and row.high <= most:
        return "yes"
    return "no" if row.high < least or row.low > most else "undecided"


def is_above(row: Row, bound: float) -> Verdict:
    """Whether the number is greater than the bound; equal is not."""
    if row.low is None or row.high is None:
        return "undecided"
    return "yes" if row.low > bound else "no" if row.high <= bound else "undecided"


def between(least: float, most: float) -> Test:
    """The number lies between the two, ends included."""
    return lambda answer, row: is_between(row, least=least, most=most)


def at_least(bound: float) -> Test:
    """The number is the bound or more."""
    return between(bound, math.inf)


def at_most(bound: float) -> Test:
    """The number is the bound or less."""
    return between(-math.inf, bound)


def above(bound: float) -> Test:
    """The number is more than the bound."""
    return lambda answer, row: is_above(row, bound)


def each_layer_between(name: str, least: float, most: float) -> Test:
    """The number of that name lies between the two in every layer; each interval corrected for their number."""
    return lambda answer, row: every(
        is_between(one, least=least, most=most) for one in correct_intervals(answer.rows(name))
    )


def every(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Yes if all say yes, no if one says no; None if there are none."""
    found = list(verdicts)
    if not found:
        return None
    return "no" if "no" in found else "undecided" if "undecided" in found else "yes"


def correct_intervals(rows: Sequence[Row], looks: int | None = None) -> list[Row]:
    """The rows with intervals that all hold at once; `looks` if more is looked at than they."""
    return [widen(row, len(rows) if looks is None else looks) for row in rows]


def difference(of: Row, from_: Row) -> Row:
    """The first number minus the second, of other cases; its interval is made of both (Newcombe 1998)."""
    low = high = None
    value = of.value - from_.value
    if of.low is not None and of.high is not None and from_.low is not None and from_.high is not None:
        low = value - math.hypot(of.value - of.low, from_.high - from_.value)
        high = value + math.hypot(of.high - of.value, from_.value - from_.low)
    return replace(of, layer=None, value=value, low=low, high=high, own={})


def of_few_documents(answer: Answer) -> bool:
    """Whether the prefixes of the answer are from too few documents to decide anything."""
    documents = answer.total("documents")
    return documents is not None and documents.value < FEWEST_DOCUMENTS
