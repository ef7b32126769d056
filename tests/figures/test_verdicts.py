"""The way of a verdict onto the pages: from the tables of an atlas, and beside the rule.

The rules themselves are tried in tests/questions/test_rules.py.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from figures.drawn_answers import verdicts
from mnemoscope.questions import QUESTIONS, load_question, write_all
from mnemoscope.questions.answers import load_answers
from mnemoscope.show.export.writing import render_page
from mnemoscope.show.figures.sections import compare_with_paper
from questions.hand_answers import answered, total
from reports.reading import section, words
from reports.reported_atlas import reported
from web.served import client


def test_too_few_documents_decide_nothing() -> None:
    for documents, verdict in ((9, "undecided"), (10, "yes")):
        answer = answered("refinement_events", [total("unchanged", 0.9, 1.0)], documents=documents)
        assert verdicts(answer)["unchanged"] == verdict


def test_the_number_tested_stands_beside_the_rule() -> None:
    lines = [total("agreement_best_layer", 0.03, 0.05), total("agreement_best_above_baseline", 0.01, 0.03)]
    found = {line.text: line for line in compare_with_paper({"value_agreement": answered("value_agreement", lines)})}
    assert found["agreement in the best layer"].rule.replace("\xa0", " ").endswith("difference: 2.0 % [1.0 %, 3.0 %]")


SHALLOW = [(layer, memory, "shallow", [0, 1, 2, 3, 4, 5]) for layer in range(2) for memory in range(12)]
SEMANTIC = [(layer, memory, "semantic", ranks) for layer, memory, _, ranks in SHALLOW]
# Of 24 memories all have a pattern. Both layers are lower ones.
SHOWN = {
    "shallow": (SHALLOW, {"keys_with_pattern": "yes", "covered": "yes", "shallow_leads_lower": "yes"}),
    "semantic": (SEMANTIC, {"keys_with_pattern": "yes", "covered": "yes", "shallow_leads_lower": "no"}),
    "none": ([], {"keys_with_pattern": "no", "covered": "no", "shallow_leads_lower": "undecided"}),
}


@pytest.mark.fast(1)
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
        "overview": _stated(reader.get("/").text),
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


def _stated(markup: str) -> dict[str, str]:
    """The verdict of each claim in the overview's list, by its words."""
    stated = re.findall(r'<li><span class="verdict[^"]*">(.*?)</span> ([^<]*) <span class="soft">\(the paper', markup)
    signs = {"✓ holds": "yes", "✗ does not hold": "no", "— not judged": "—"}
    return {words(text): signs.get(words(sign), words(sign)) for sign, text in stated}
