"""Ours beside the paper: every result that its text states, our number, and by a stated rule whether it shows here.

The paper's figures are those of one model of 16 layers; a small model need not repeat them. Rules are in `rules` and
`findings`; each is printed, in words, beside its verdict: yes, no, undecided, or a dash where nothing can be judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mnemoscope.figures.answered import Answered
from mnemoscope.figures.findings import FINDINGS, Finding
from mnemoscope.figures.rules import RULES
from mnemoscope.figures.words import DASH, Form, interval, layers_spoken, spoken
from mnemoscope.questions import Claim


@dataclass(frozen=True)
class Compared:
    """One line of the comparison, in words; `shown` is yes, no, undecided or a dash."""

    question: str
    figure: str
    text: str
    paper: str
    ours: str
    interval: str
    shown: str
    rule: str


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
    words = "" if rule is None else rule.said(answer)
    if row is None:
        return Compared(*where, ours=DASH, interval="", shown=DASH, rule=words)
    form: Form = claim.form
    verdict = None if rule is None else rule.verdict(answer, row)
    layer = row.own.get("at_layer", row.own.get("best_layer"))
    ours = spoken(row.value, form) + ("" if layer is None else f" (layer {layer})")
    return Compared(*where, ours, interval(row.low, row.high, form), verdict or DASH, words)


def _finding(answer: Answered, finding: Finding, answers: Mapping[str, Answered]) -> Compared:
    ours, between, verdict = finding.found(answer.question, answers)
    where = answer.question, answer.paper.figure, finding.text, finding.paper
    return Compared(*where, ours, between, verdict or DASH, finding.rule)


def upper_spoken(answer: Answered) -> str:
    """Which layers the upper ones are here, in words."""
    if not answer.upper:
        return "none of the mined layers is an upper one"
    return f"the upper layers are {layers_spoken(answer.upper)}"
