"""The verdict of a 95 % interval on a claim: yes, no or undecided.

Yes if the whole interval lies on the claim's side, no if all of it lies on the other; else, and without an interval,
undecided. For a claim about many layers, intervals are first corrected for the number of layers (Bonferroni). Claims
about the paper's layers 11-16 are tested on the layers from ceil(10 L / 16) on, claims about layers 1-10 on the others.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mnemoscope.foundation.formatting import DASH
from mnemoscope.foundation.intervals import widen
from mnemoscope.questions import answer_builder
from mnemoscope.questions.question import LITERAL, Answer, Outcome, Row, Verdict

NOTHING_FOUND: Outcome = (DASH, "", None)

FEWEST_DOCUMENTS = 10
"""With fewer documents, a bootstrap interval is too short for a verdict."""

UNTRAINED = "an untrained model may answer yes"

Test = Callable[[Answer, Row], Verdict | None]
"""The verdict of an answer on a claim, by the row of the number tested; None if the test does not apply."""


def is_between(row: Row, *, least: float = -math.inf, most: float = math.inf) -> Verdict:
    if row.low is None or row.high is None:
        return "undecided"
    if row.low >= least and row.high <= most:
        return "yes"
    return "no" if row.high < least or row.low > most else "undecided"


def is_above(row: Row, bound: float) -> Verdict:
    if row.low is None or row.high is None:
        return "undecided"
    return "yes" if row.low > bound else "no" if row.high <= bound else "undecided"


def between(least: float, most: float) -> Test:
    return lambda answer, row: is_between(row, least=least, most=most)


def at_least(bound: float) -> Test:
    return between(bound, math.inf)


def at_most(bound: float) -> Test:
    return between(-math.inf, bound)


def all_counted(answer: Answer, row: Row) -> Verdict:
    """Whether all cases of a census are hits."""
    return "yes" if row.value == 1 else "no"


def above(bound: float) -> Test:
    return lambda answer, row: is_above(row, bound)


def each_layer_between(name: str, least: float, most: float) -> Test:
    """Of the layers' number `name`, or its literal one where the total tested is literal."""

    def test(answer: Answer, row: Row) -> Verdict | None:
        rows = answer.rows(LITERAL + name if row.name.startswith(LITERAL) else name)
        return every(is_between(one, least=least, most=most) for one in correct_intervals(rows))

    return test


def every(verdicts: Iterable[Verdict]) -> Verdict | None:
    """No if one says no, yes if all say yes, else undecided; None if there are none."""
    given = list(verdicts)
    if not given:
        return None
    return "no" if "no" in given else "undecided" if "undecided" in given else "yes"


def correct_intervals(rows: Sequence[Row], looks: int | None = None) -> list[Row]:
    """Corrects the intervals for `looks` comparisons (Bonferroni), by default as many as there are rows."""
    return [widen(row, len(rows) if looks is None else looks) for row in rows]


def difference(of: Row, from_: Row) -> Row:
    """The difference of two independent samples."""
    estimate = answer_builder.difference(of, from_)
    return replace(of, layer=None, value=of.value - from_.value, low=estimate.low, high=estimate.high, own={})


def of_few_documents(answer: Answer) -> bool:
    documents = answer.total("documents")
    return documents is not None and documents.value < FEWEST_DOCUMENTS
