"""Yes, no, or undecided: what a 95 % interval says about a claim.

Yes only if the whole interval lies on the claim's side, no only if all of it lies on the other; in between, and where
there is no interval, the numbers do not decide. So a claim that is false is called shown in at most 5 % of cases, as
far as intervals hold. Where a claim is about many layers, the interval of each is corrected for their number first, so
that all of them hold at once (Bonferroni).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from mnemoscope.formatting import DASH
from mnemoscope.intervals import Estimate, widened
from mnemoscope.questions.answered import Answered, Row

Verdict = Literal["yes", "no", "undecided"]

Found = tuple[str, str, Verdict | None]
"""A finding of ours in words, its interval in words, and the verdict; None where there is nothing to judge."""

NOTHING_FOUND: Found = (DASH, "", None)

FEWEST_DOCUMENTS = 10
"""Documents of which a bootstrap says how sure a number is; with fewer, its interval is too short to decide by."""


def judged(row: Row, *, least: float = -math.inf, most: float = math.inf) -> Verdict:
    """Whether the number lies between the two, ends included."""
    if row.low is None or row.high is None:
        return "undecided"
    if row.low >= least and row.high <= most:
        return "yes"
    return "no" if row.high < least or row.low > most else "undecided"


def judged_above(row: Row, bound: float) -> Verdict:
    """Whether the number is greater than the bound; equal is not."""
    if row.low is None or row.high is None:
        return "undecided"
    return "yes" if row.low > bound else "no" if row.high <= bound else "undecided"


def every(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Yes if all say yes, no if one says no; None if there are none."""
    found = list(verdicts)
    if not found:
        return None
    return "no" if "no" in found else "undecided" if "undecided" in found else "yes"


def corrected(rows: Sequence[Row], looks: int | None = None) -> list[Row]:
    """The rows with intervals that all hold at once; `looks` if more is looked at than they."""
    count = len(rows) if looks is None else looks
    found = [widened(Estimate(row.value, row.count, row.low, row.high), count) for row in rows]
    return [replace(row, low=one.low, high=one.high) for row, one in zip(rows, found, strict=True)]


def difference(of: Row, from_: Row) -> Row:
    """The first number minus the second, of other cases; its interval is made of both (Newcombe 1998)."""
    low = high = None
    value = of.value - from_.value
    if of.low is not None and of.high is not None and from_.low is not None and from_.high is not None:
        low = value - math.hypot(of.value - of.low, from_.high - from_.value)
        high = value + math.hypot(of.high - of.value, from_.value - from_.low)
    return replace(of, layer=None, value=value, low=low, high=high, own={})


def few_documents(answer: Answered) -> bool:
    """Whether the prefixes of the answer are from too few documents to decide anything."""
    documents = answer.total("documents")
    return documents is not None and documents.value < FEWEST_DOCUMENTS
