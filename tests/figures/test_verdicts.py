"""Every rule of "shown here?" at its edge, and the way of a verdict onto the pages.

An edge is where the end of an interval touches the threshold that the rule states: a little further and the verdict is
another. So a rule turned round, or a threshold moved by a ten-thousandth, fails here.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from figures.drawn_answers import findings, rules, verdicts
from mnemoscope.figures.sections import compare_with_paper
from mnemoscope.intervals import widen
from mnemoscope.questions import QUESTIONS, load_question, write_all
from mnemoscope.questions.answers import load_answers
from mnemoscope.questions.question import EMPTY, Answer
from mnemoscope.questions.registry import THE_PAPERS
from mnemoscope.reports.writing import render_page
from reports.reading import section, words
from reports.reported_atlas import reported
from web.served import client

Line = tuple[int | None, str, float | None, float | None, float | None] | tuple[Any, ...]
LAYERS = 8
E = 0.0001
"""Less than any threshold may be moved by."""


def answered(question: str, lines: Sequence[Line], *, documents: int = 50) -> Answer:
    """An answer of these rows (layer, name, value, low, high), of 8 layers and 50 documents."""
    rows = [(layer, name, value, 100, low, high) for layer, name, value, low, high in lines]
    rows.append((None, "documents", float(documents), documents, None, None))
    table = pl.DataFrame(rows, schema=EMPTY.schema, orient="row")
    return Answer(load_question(question), table, "", "", tuple(range(LAYERS)), LAYERS)


def everything(*given: Answer) -> list[Answer]:
    """These answers, and empty ones to all other questions."""
    own = {answer.question.id: answer for answer in given}
    return [own.get(question, answered(question, [])) for question in QUESTIONS]


def total(name: str, low: float | None, high: float | None) -> Line:
    return None, name, ((low or 0) + (high or 0)) / 2, low, high


def by_layer(name: str, others: tuple[float, float], one: tuple[float, float] | None = None) -> list[Line]:
    """The corrected interval of every layer, and of layer 3; each is written as narrow as it is before the correction.

    The number is in the middle, so the correction for 8 layers stretches both sides alike.
    """
    lines: list[Line] = []
    for layer in range(LAYERS):
        low, high = (one or others) if layer == 3 else others
        middle, half = (low + high) / 2, (high - low) / 2
        lines.append((layer, name, middle, middle - half / STRETCH, middle + half / STRETCH))
    return lines


STRETCH = 2.734368787 / 1.959963985
"""The normal quantile of 1 - 0.025 / 8 over that of 0.975, from a table."""


def edges(bound: float, *, equal: bool = True) -> list[tuple[float, float, str]]:
    """Intervals at a threshold from below: last yes, both sides of it, first no. `equal` belongs to the claim."""
    if equal:
        return [
            (bound, bound + 0.1, "yes"), (bound - E, bound + 0.1, "undecided"),
            (bound - 0.1, bound, "undecided"), (bound - 0.1, bound - E, "no"),
        ]  # fmt: skip
    return [
        (bound + E, bound + 0.1, "yes"), (bound, bound + 0.1, "undecided"),
        (bound - 0.1, bound + E, "undecided"), (bound - 0.1, bound, "no"),
    ]  # fmt: skip


def between(low: float, high: float) -> list[tuple[float, float, str]]:
    return [
        (low, high, "yes"), (low - E, high, "undecided"), (low, high + E, "undecided"), (low - 1, low, "undecided"),
        (low - 1, low - E, "no"), (high + E, high + 1, "no"), (high, high + 1, "undecided"),
    ]  # fmt: skip


ABOVE_0 = edges(0, equal=False)
# The claim's name and question, the number tested, and its intervals with their verdicts.
TOTALS = [
    ("keys_with_pattern", "key_patterns", "", edges(0.95)),
    ("covered", "key_patterns", "", edges(0.65)),
    ("shallow_leads_lower", "key_patterns", "", edges(2 / 3)),
    ("semantic_leads_upper", "key_patterns", "", edges(2 / 3)),
    ("last_hurts_most", "key_removals", "", edges(0.75)),
    ("last_median_upper_minus_lower", "key_removals", "", ABOVE_0),
    ("agreement_lower", "value_agreement", "agreement_lower_above_third",
     [(-0.1, 0, "yes"), (-0.1, E, "undecided"), (0, 0.1, "undecided"), (E, 0.1, "no")]),
    ("agreement_best_layer", "value_agreement", "agreement_best_above_baseline", ABOVE_0),
    ("least_depth", "layer_activity", "", between(0.5, 0.75)),
    ("agreeing_stop_word", "layer_composition", "agreeing_stop_word_above_all", ABOVE_0),
    ("agreeing_short", "layer_composition", "agreeing_short_above_all", ABOVE_0),
    ("match_lower_third", "refinement_match", "", between(0.25, 0.42)),
    ("unchanged", "refinement_events", "", edges(0.75)),
    ("composition_of_changed", "refinement_events", "", edges(2 / 3)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "question", "by", "cases"), TOTALS, ids=[one[0] for one in TOTALS])
def test_a_total_at_the_edge(name: str, question: str, by: str, cases: list[tuple[float, float, str]]) -> None:
    assert {verdict for *_, verdict in cases} == {"yes", "no", "undecided"}
    for low, high, verdict in cases:
        tested = total(by or name, low, high)
        # What the claim states says the opposite where another number is tested.
        lines = [tested, total(name, 1 - low, 1 - high)] if by else [tested]
        assert verdicts(*everything(answered(question, lines)))[name] == verdict, (low, high)
    assert verdicts(*everything(answered(question, [total(by or name, None, None), total(name, None, None)])))[
        name
    ] == "undecided"
    assert verdicts(*everything(answered(question, [])))[name] == "—"
    if by:  # answers of older versions lack it
        assert verdicts(*everything(answered(question, [total(name, 0.9, 0.9)])))[name] == "—"


LAYER_RULES = [
    ("active", "layer_activity", "active", (0.2, 0.3), between(0.1, 0.5)),
    ("zero_agreement_least_layer", "layer_composition", "zero_agreement", (0.8, 0.9), edges(0.68)),
]


@pytest.mark.parametrize(("claim", "question", "name", "others", "cases"), LAYER_RULES, ids=[r[0] for r in LAYER_RULES])
def test_every_layer_at_the_edge_after_the_correction(
    claim: str, question: str, name: str, others: tuple[float, float], cases: list[tuple[float, float, str]]
) -> None:
    for low, high, verdict in cases:
        # A hair wider or narrower where the end is the threshold: the stretching rounds.
        hair = -1e-6 if verdict == "yes" else 1e-6 if verdict == "undecided" else 0.0
        lines = [*by_layer(name, others, (low - hair, high + hair)), total(claim, 0.2, 0.3)]
        assert verdicts(*everything(answered(question, lines)))[claim] == verdict, (low, high)


@pytest.mark.parametrize(("low", "high", "verdict"), edges(3 / 8, equal=False))
def test_the_hundred_against_the_share_of_memories(low: float, high: float, verdict: str) -> None:
    """Three of eight layers of 100 memories are upper ones."""
    lines = [*((layer, "max_probability", 0.5, None, None) for layer in range(LAYERS)),
             total("top100_upper_layers", low, high)]  # fmt: skip
    assert verdicts(*everything(answered("value_confidence", lines)))["top100_upper_layers"] == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), edges(0.5, equal=False))
def test_pairs_of_ranks(low: float, high: float, verdict: str) -> None:
    lines = [*((layer, "q50", 9.0 - layer, None, None) for layer in range(LAYERS)),
             total("upper_ranks_higher", low, high)]  # fmt: skip
    assert verdicts(*everything(answered("value_rank", lines)))["value_rank"] == verdict


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        # The difference of two shares, each 3 and 4 off: the ends are 5 off (Newcombe).
        ((0.10, 0.07, 0.13), (0.151, 0.111, 0.191), "yes"),
        ((0.10, 0.07, 0.13), (0.150, 0.110, 0.190), "undecided"),
        ((0.150, 0.110, 0.190), (0.101, 0.071, 0.131), "undecided"),
        ((0.151, 0.111, 0.191), (0.100, 0.070, 0.130), "no"),
        ((0.1, None, None), (0.9, None, None), "undecided"),
    ],
)
def test_the_most_and_the_least_confident_tenth(
    first: tuple[float, float, float], last: tuple[float, float, float], verdict: str
) -> None:
    lines = [(None, "decile_0", *first), (None, "decile_9", *last)]
    assert verdicts(*everything(answered("value_confidence", lines)))["value_confidence"] == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), ABOVE_0)
def test_growth_of_matches(low: float, high: float, verdict: str) -> None:
    lines = [*by_layer("match", (0.2, 0.3)), total("match_growth_upper_minus_lower", low, high)]
    assert verdicts(*everything(answered("refinement_match", lines)))["refinement_match"] == verdict


@pytest.mark.parametrize(
    ("rise", "steps", "verdict"),
    [
        ((E, 0.1), (0.75, 1.0), "yes"),
        ((0, 0.1), (0.75, 1.0), "undecided"),
        ((E, 0.1), (0.75 - E, 1.0), "undecided"),
        ((E, 0.1), (0.0, 0.75), "undecided"),
        ((E, 0.1), (0.0, 0.75 - E), "no"),
        ((-0.1, 0), (0.75, 1.0), "no"),
    ],
)
def test_rising_confidence(rise: tuple[float, float], steps: tuple[float, float], verdict: str) -> None:
    lines = [*by_layer("probability", (0.2, 0.3)), total("rise", *rise), total("rising_steps", *steps)]
    assert verdicts(*everything(answered("refinement_confidence", lines)))["refinement_confidence"] == verdict


@pytest.mark.parametrize(
    ("fewest", "shallow", "verdict"),
    [
        # Layers (from, to) that may have the fewest active; shallow leads in the first layers, nobody, then semantic.
        ((4, 4), (5, 0), "yes"),
        ((4, 6), (5, 0), "yes"),
        ((3, 4), (5, 0), "undecided"),
        ((6, 7), (6, 0), "undecided"),  # 7 is an end
        ((5, 5), (3, 2), "undecided"),
        ((4, 4), (3, 2), "yes"),  # overtakes in 3, 4 or 5
        ((7, 7), (6, 0), "no"),
        ((1, 3), (5, 0), "no"),
        ((4, 4), (8, 0), "—"),
    ],
)
def test_the_dip(fewest: tuple[int, int], shallow: tuple[int, int], verdict: str) -> None:
    leads, unclear = shallow
    kinds: list[Line] = []
    for layer in range(LAYERS):
        value = 0.8 if layer < leads else 0.49 if layer < leads + unclear else 0.2
        kinds.append((layer, "shallow_of_one_kind", value, value - 0.1, value + 0.1))
    low, high = ((layer + 1) / LAYERS for layer in fewest)
    lines: list[Line] = [*by_layer("active", (0.2, 0.3)), (None, "least_depth", low, low, high)]
    found = verdicts(*everything(answered("key_patterns", kinds), answered("layer_activity", lines)))
    assert found["layer_activity"] == verdict


def test_no_rule_is_left_out() -> None:
    names = {one[0] for one in (*TOTALS, *LAYER_RULES)} | {"top100_upper_layers"}
    assert names == rules(THE_PAPERS)
    claims = {claim.name for question in THE_PAPERS for claim in load_question(question).paper.claims}
    assert names <= claims
    assert len(findings()) == 5  # each has a test above


def test_too_few_documents_decide_nothing() -> None:
    for documents, verdict in ((9, "undecided"), (10, "yes")):
        answer = answered("refinement_events", [total("unchanged", 0.9, 1.0)], documents=documents)
        assert verdicts(*everything(answer))["unchanged"] == verdict


def test_the_number_tested_stands_beside_the_rule() -> None:
    lines = [total("agreement_best_layer", 0.03, 0.05), total("agreement_best_above_baseline", 0.01, 0.03)]
    found = {line.text: line for line in compare_with_paper({"value_agreement": answered("value_agreement", lines)})}
    assert found["agreement in the best layer"].rule.replace("\xa0", " ").endswith("difference: 2.0 % [1.0 %, 3.0 %]")


SHALLOW = [(layer, memory, "shallow", [0, 1, 2, 3, 4, 5]) for layer in range(2) for memory in range(12)]
SEMANTIC = [(layer, memory, "semantic", ranks) for layer, memory, _, ranks in SHALLOW]
# Of 24 memories all have a pattern: Wilson from 86 %. Both layers are lower ones.
SHOWN = {
    "shallow": (SHALLOW, {"keys_with_pattern": "undecided", "covered": "yes", "shallow_leads_lower": "yes"}),
    "semantic": (SEMANTIC, {"keys_with_pattern": "undecided", "covered": "yes", "shallow_leads_lower": "no"}),
    "none": ([], {"keys_with_pattern": "no", "covered": "no", "shallow_leads_lower": "undecided"}),
}


@pytest.mark.parametrize("case", SHOWN)
def test_pages_print_the_verdict_that_the_memories_give(case: str, tmp_path: Path) -> None:
    """From the tables of an atlas, through the answers, to the report's page and the served one."""
    patterns, expected = SHOWN[case]
    atlas = reported(tmp_path, patterns=patterns)
    write_all(atlas)
    expected = expected | {"semantic_leads_upper": "—"}
    names = {claim.text: claim.name for claim in load_question("key_patterns").paper.claims}
    drawn: Any = {"specifications": {}, "drawings": dict.fromkeys(QUESTIONS, ""), "vega": ""}
    report = render_page(load_answers(atlas), **drawn, inside=True)
    reader = client(tmp_path)
    served = reader.get("/questions/key_patterns").text
    data = reader.get("/questions/key_patterns.json").json()["comparison"]
    printed = {
        "report": _printed(section(report, "paper")),
        "served": _printed(served),
        "data": {line["text"]: line["shown"] for line in data},
    }
    for where, lines in printed.items():
        assert {name: lines[text] for text, name in names.items() if name in expected} == expected, where
    assert "undecided" in words(section(report, "paper"))


def _printed(markup: str) -> dict[str, str]:
    """The verdict in each row of a comparison, by the words of the claim."""
    found = {}
    for row in re.findall(r"<tr>(.*?</tr>)", markup, flags=re.DOTALL):
        said = re.search(r'<span class="verdict[^"]*">(.*?)</span>', row)
        head = re.search(r'<th scope="row">(.*?)</th>', row)
        if said and head:
            found[words(head.group(1))] = said.group(1).strip()
    return found


def test_the_correction_is_that_of_the_table() -> None:
    from mnemoscope.intervals import Estimate

    found = widen(Estimate(0.5, 10, 0.4, 0.7), LAYERS)
    assert found.low == pytest.approx(0.5 - 0.1 * STRETCH)
    assert found.high == pytest.approx(0.5 + 0.2 * STRETCH)
    assert widen(Estimate(0.5, 10, 0.4, 0.7), 1) == Estimate(0.5, 10, 0.4, 0.7)
