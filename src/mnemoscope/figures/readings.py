"""Clauses that say in words what a column of numbers does over the layers; used below figures and as their alt text."""

from mnemoscope.formatting import interval, spoken
from mnemoscope.questions.answered import Answered, Row


def said(row: Row, *, with_interval: bool = False) -> str:
    """The row's value, with its interval if that is wanted and there is one."""
    bounds = interval(row.low, row.high, row.form) if with_interval else ""
    return f"{spoken(row.value, row.form)} {bounds}".strip()


def over_all(answer: Answered, name: str) -> str:
    """The total and its interval: `34 % [33 %, 35 %]`; `an unknown share` where there is none."""
    row = answer.total(name)
    return "an unknown share" if row is None else said(row, with_interval=True)


def ends(answer: Answered, name: str) -> str:
    """`3 % in layer 0 and 12 % in layer 7 (most in layer 5: 14 %)`: the most is left out where it is an end."""
    rows = answer.rows(name)
    if not rows:
        return "no number"
    first, last = rows[0], rows[-1]
    if first is last:
        return f"{said(first)} in layer {first.layer}"
    most = max(rows, key=lambda row: row.value)
    least = min(rows, key=lambda row: row.value)
    inner = [
        f"{word} in layer {row.layer}: {said(row)}"
        for word, row in (("most", most), ("least", least))
        if row not in (first, last) and row.value not in (first.value, last.value)
    ]
    aside = f" ({', '.join(inner)})" if inner else ""
    return f"{said(first)} in layer {first.layer} and {said(last)} in layer {last.layer}{aside}"
