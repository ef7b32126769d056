"""Pages of the questions: the answers' numbers, the paper's beside them, and figures that are links in a browser."""

import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from starlette.testclient import TestClient

from mnemoscope.foundation.formatting import format_value
from mnemoscope.questions import QUESTIONS, load_question
from reports.reading import words
from reports.reported_atlas import reported
from support.browser import PHONE, Visits
from web.served import client, running


@pytest.fixture(scope="module")
def reader(answered_atlas: Path) -> TestClient:
    return client(answered_atlas)


@pytest.fixture(scope="module")
def address(answered_atlas: Path) -> Iterator[str]:
    with running(answered_atlas) as base:
        yield base


@pytest.mark.fast(2, full=6)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_shows_its_answer(question: str, reader: TestClient) -> None:
    found = reader.get(f"/questions/{question}.json").json()
    page = reader.get(f"/questions/{question}").text
    said = words(page)
    asked = load_question(question)
    assert found["figure"] == asked.paper.figure
    assert asked.paper.question in said
    by_layer = [row for row in found["answer"] if row["layer"] is not None and row["value"] is not None]
    assert by_layer
    for row in by_layer:
        assert " ".join(format_value(row["value"], asked.number(row["name"]).form).split()) in said, row["name"]
    for line in found["comparison"]:
        assert line["paper"] in unescape(said)
    drawing = re.search(r"<svg.*?</svg>", page, flags=re.DOTALL)
    root = ElementTree.fromstring(drawing.group())
    assert not [one for one in root.iter() if one.tag in ("script", "style") or "style" in one.attrib]
    assert "<img" not in page


@pytest.mark.full
def test_all_questions_are_listed_and_lead_to_one_another(reader: TestClient) -> None:
    listed = reader.get("/questions.json").json()["questions"]
    assert [one["question"] for one in listed] == list(QUESTIONS)
    page = reader.get("/questions").text
    for before, after in pairwise(QUESTIONS):
        assert f'href="/questions/{after}"' in page
        if before in QUESTIONS[:2]:
            assert f'href="/questions/{after}" data-key="j"' in reader.get(f"/questions/{before}").text
    assert reader.get("/questions/nothing").status_code == 404


def test_a_layer_says_what_the_questions_find_there(reader: TestClient) -> None:
    answer = reader.get("/questions/value_agreement.json").json()["answer"]
    own = next(row for row in answer if row["layer"] == 1 and row["name"] == "literal_agreement")
    numbers = reader.get("/layers/1.json").json()["numbers"]
    found = next(one for one in numbers if one["question"] == "value_agreement")["numbers"][0]
    assert {name: found[name] for name in own if name in found} == {name: own[name] for name in found if name in own}


def test_a_page_never_makes_an_answer(tmp_path: Path) -> None:
    path = reported(tmp_path).path
    before = sorted(str(one) for one in path.rglob("*"))
    reader = client(path)
    page = unescape(reader.get("/questions/value_agreement").text)
    assert f"mnemoscope analyze {path}" in page
    assert "<svg" not in page
    assert (reader.get("/questions").status_code, sorted(str(one) for one in path.rglob("*"))) == (200, before)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (PHONE, False)])
def test_in_a_browser_points_are_links_and_nothing_complains(
    visit: Visits, address: str, width: int, dark: bool
) -> None:
    seen = visit(f"{address}/questions/refinement_match", width=width, dark=dark)
    assert seen.wider_than_the_window() <= 0
    ink = seen.page.evaluate("getComputedStyle(document.querySelector('svg.drawing text')).fill")
    body = seen.page.evaluate("getComputedStyle(document.body).color")
    assert ink == body
    seen.page.locator("svg.drawing a:visible").first.click()
    seen.page.wait_for_url(re.compile(r"/layers/0$"))
    assert seen.wider_than_the_window() <= 0
    point = seen.page.locator("svg.drawing a:visible").first
    name = str(point.get_attribute("href"))
    point.click()
    seen.page.wait_for_url(re.compile(r"/L0\.M\d+$"))
    assert name.startswith("/L0.M")
    # The icon is asked for after the page has loaded, and given up when the next page comes first.
    assert [one for one in seen.complaints if not re.search(r"/icon\.svg$", one)] == []
    assert all(request.startswith(address) for request in seen.requests)


def test_a_form_chooses_without_a_script(visit: Visits, address: str) -> None:
    seen = visit(f"{address}/layers/1")
    seen.page.locator("summary", has_text="Choose among them").click()
    seen.page.get_by_label("patterns").select_option("semantic")
    seen.page.get_by_role("button", name="Choose").click()
    seen.page.wait_for_url(re.compile(r"kind=semantic"))
    assert seen.page.locator("table.rows tbody tr").count() == 1
    seen.page.get_by_role("link", name="L1.M0", exact=True).click()
    seen.page.wait_for_url(re.compile(r"/L1\.M0$"))
    assert [one for one in seen.complaints if not re.search(r"/icon\.svg$", one)] == []
