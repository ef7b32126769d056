"""Ours beside the paper: every result that its text states, our number, and by a stated rule whether it shows here.

The paper's figures are those of one model of 16 layers; a small model need not repeat them. Claims, rules and findings
are declared by the questions; each rule is printed, in words, beside its verdict: yes, no, undecided, or a dash where
nothing can be judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mnemoscope.formatting import DASH, interval, layers_spoken, spoken
from mnemoscope.questions.answered import Answered, Row
from mnemoscope.questions.question import Claim, Finding, Rule
from mnemoscope.questions.verdicts import NOTHING_FOUND, Verdict, few_documents


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
        if answer.asked.finding is not None:
            lines.append(_finding(answer, answer.asked.finding, answers))
    return lines


def _claim(answer: Answered, claim: Claim) -> Compared:
    row, rule = answer.total(claim.name), claim.rule
    where = answer.question, answer.paper.figure, claim.text, claim.paper
    words = "" if rule is None else _rule_in_words(rule, answer)
    if row is None:
        return Compared(*where, ours=DASH, interval="", shown=DASH, rule=words)
    verdict = None if rule is None else _verdict(rule, answer, row)
    layer = row.own.get("at_layer", row.own.get("best_layer"))
    ours = spoken(row.value, claim.form) + ("" if layer is None else f" (layer {layer})")
    return Compared(*where, ours, interval(row.low, row.high, claim.form), verdict or DASH, words)


def _rule_in_words(rule: Rule, answer: Answered) -> str:
    """The words, with the number tested if it is not the one that the paper states."""
    tested = answer.total(rule.by) if rule.by else None
    if tested is None:
        return rule.words
    between = interval(tested.low, tested.high, tested.form)
    return f"{rule.words}: {spoken(tested.value, tested.form)} {between}".rstrip()


def _verdict(rule: Rule, answer: Answered, row: Row) -> Verdict | None:
    """The verdict on the claim behind this row; None where the number tested does not exist."""
    tested = answer.total(rule.by) if rule.by else row
    return None if tested is None else _unless_few_documents(rule.test(answer, tested), answer)


def _finding(answer: Answered, finding: Finding, answers: Mapping[str, Answered]) -> Compared:
    ours, between, verdict = NOTHING_FOUND if answer.missing else finding.test(answers)
    where = answer.question, answer.paper.figure, finding.text, finding.paper
    return Compared(*where, ours, between, _unless_few_documents(verdict, answer) or DASH, finding.rule)


def _unless_few_documents(verdict: Verdict | None, answer: Answered) -> Verdict | None:
    """The verdict; an answer of too few documents decides nothing."""
    return "undecided" if verdict is not None and few_documents(answer) else verdict


def upper_spoken(answer: Answered) -> str:
    """Which layers the upper ones are here, in words."""
    if not answer.upper:
        return "none of the mined layers is an upper one"
    return f"the upper layers are {layers_spoken(answer.upper)}"
