"""Overview, search and tokens: right numbers, hostile text shown and never markup, and refusals in one sentence."""

import html
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.schema import THE_PAPERS
from mnemoscope.questions import BEYOND
from mnemoscope.questions.answers import all_are_current, write_all
from mnemoscope.show.figures.examples import best_examples
from reports.reported_atlas import reported
from support.mined import mined_text
from web.parts import Parts
from web.served import client, patient


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An atlas with answers and patterns, whose texts would run if a page let them."""
    return reported(tmp_path_factory.mktemp("atlas"), active=12).path


@pytest.fixture(scope="module")
def reader(atlas: Path) -> TestClient:
    return client(atlas)


PAGES = ("/", "/L0.M0", "/L0.M1", "/L1.M0?pattern=0", "/search?q=script", "/tokens", "/tokens?q=script", "/tokens/6")


@pytest.mark.fast(1)
@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(reader: TestClient, path: str) -> None:
    page = Parts(patient(reader, path).text)
    links = {str(attributes["href"]) for tag, attributes in page.found if tag in ("a", "link")}
    assert len(links) > 5
    for link in sorted(links):
        if link.startswith("/"):
            assert patient(reader, link.split("#")[0]).status_code == 200, link


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_labelled_has_a_twin_and_shows_hostile_text_as_text(reader: TestClient, path: str) -> None:
    answer = patient(reader, path)
    assert answer.status_code == 200
    text, page = answer.text, Parts(answer.text)
    scripts = [attributes for tag, attributes in page.found if tag == "script"]
    assert [sorted(one) for one in scripts] == [["defer", "src"]]
    assert not [tag for tag, _ in page.found if tag in ("img", "style", "iframe", "object")]
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
    # Shown all the same: the model's name stands in every page.
    assert "&lt;img src=x onerror=window.ran=1&gt;" in text
    assert re.search(r"<title>.*Mnemoscope</title>", text)
    assert [tag for tag, _ in page.found].count("h1") == 1
    labelled = {attributes.get("for") for tag, attributes in page.found if tag == "label"}
    inside = re.findall(r"<label>(?:(?!</label>).)*<input[^>]*name=\"(\w+)\"", text, re.DOTALL)
    for tag, attributes in page.found:
        if tag in ("input", "select") and attributes.get("type") != "hidden":
            assert attributes.get("id") in labelled or attributes.get("name") in inside, attributes
    identities = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(identities) == len(set(identities))
    twin = next(str(one["href"]) for tag, one in page.found if tag == "link" and one.get("rel") == "alternate")
    answer = patient(reader, twin)
    assert answer.headers["content-type"] == "application/json"
    assert isinstance(answer.json(), dict)


def test_the_overview_holds_what_the_atlas_says(atlas: Path, reader: TestClient) -> None:
    data = reader.get("/index.json").json()
    opened = open_atlas(atlas)
    assert (data["memories"], data["layers"]) == (24, [{"layer": 0, "memories": 12}, {"layer": 1, "memories": 12}])
    assert data["unanswered"] == list(data["unanswered"])
    expected = best_examples(opened, 10).to_dicts()
    assert expected
    assert [one["memory"] for one in data["striking"]] == [f"L{row['layer']}.M{row['memory']}" for row in expected]
    assert [one["agreement"] for one in data["striking"]] == [row["agreement"] for row in expected]


@pytest.mark.full
def test_the_overview_states_the_papers_claims_with_verdicts_and_figures(tmp_path: Path) -> None:
    opened = reported(tmp_path / "atlas")
    reader = client(opened.path)
    before = reader.get("/").text
    assert 'role="img"' not in before
    assert "(10 of 10 questions): run <code>mnemoscope analyze" in before
    write_all(opened)
    text = reader.get("/").text
    page = Parts(text)
    drawings = [one for tag, one in page.found if tag == "svg" and one.get("role") == "img"]
    figures = ["Figure 6, Table 2" if number == 6 else f"Figure {number}" for number in range(2, 12)]
    assert [str(one["aria-label"]).split(":")[0] for one in drawings] == figures
    links = [str(one["href"]) for tag, one in page.found if tag == "a" and "/questions/" in str(one.get("href"))]
    for question in THE_PAPERS:  # in words for the keyboard, and as the picture
        assert links.count(f"/questions/{question}") == 2
    identities = [one["id"] for _, one in page.found if "id" in one]
    assert len(identities) == len(set(identities))
    # What each question's own page judges, in the same order.
    expected = [line for one in THE_PAPERS for line in reader.get(f"/questions/{one}.json").json()["comparison"]]
    stated = re.findall(r'<li><span class="verdict[^"]*">(.*?)</li>', text, re.DOTALL)
    assert len(expected) == len(stated) >= 20
    signs = {"yes": "✓ holds", "no": "✗ does not hold", "—": "— not judged"}
    seen = set()
    for line, shown in zip(expected, stated, strict=True):
        said = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split())
        number = "not measured" if line["literal"] == "—" else line["literal"]
        said_first = signs.get(line["literal_shown"], line["literal_shown"])
        start = f"{said_first} {line['text']} (the paper: {line['paper']}) : {number} {line['literal_interval']}"
        assert said.startswith(" ".join(start.split())), line
        assert (f"by our formula {' '.join(line['ours'].split())}" in said) == bool(line["why"]), line
        if line["shown"] != line["literal_shown"]:
            assert said.endswith(signs.get(line["shown"], line["shown"])), line
        seen.add(said_first)
    assert seen >= {"✗ does not hold", "undecided", "— not judged"}


def test_values_at_work_are_on_the_pages(handbuilt: Path) -> None:
    reader = client(handbuilt)
    page = reader.get("/L0.M0").text
    assert "its top token gets 25.0\N{NO-BREAK SPACE}% (6.0 times chance), 3.00 nats above the mean token" in page
    assert "largest probability 50.0\N{NO-BREAK SPACE}% (12 times chance)" in page
    assert "At its typical activation" not in reader.get("/L0.M3").text  # it never fires
    assert 'Where it fires it promotes <span class="token">·Paris</span>: the first token\'s score is 5.00' in page
    assert "Where its activation is negative it has no clear token" in page
    assert "Where it fires" not in reader.get("/L0.M3").text
    value = reader.get("/L0.M0.json").json()["value"]
    features = [(one["sign"], one["promotes"], one["z"], one["clear_z"]) for one in value["features"]]
    assert features == [(1, True, 5.0, 4.0), (-1, False, 2.0, 4.0)]
    assert (value["working_probability"], value["working_logit"]) == (0.25, 3.0)
    rows = reader.get("/layers/0.json?sort=work&order=down").json()["rows"]
    assert [row["working_probability"] for row in rows] == [0.25, 0.125, 0.0625, None]
    rows = reader.get("/layers/0.json?sort=work&order=up").json()["rows"]
    assert [row["name"] for row in rows] == ["L0.M2", "L0.M1", "L0.M0", "L0.M3"]


@pytest.mark.full
def test_what_the_paper_does_not_ask_hides_no_answer(answered_atlas: Path, tmp_path: Path) -> None:
    """Most atlases never get the optional tables of questions beyond the paper."""
    atlas = shutil.copytree(answered_atlas, tmp_path / "atlas")
    for question in BEYOND:
        (atlas / f"analyses/{question}.json").unlink(missing_ok=True)
    reader = client(atlas)
    assert reader.get("/index.json").json()["unanswered"] == [*BEYOND]
    page = reader.get("/").text
    assert "Not answered yet" not in page
    assert "agreement in the best layer" in page
    (atlas / "analyses/key_removals.json").unlink()
    page = client(atlas).get("/").text
    assert "Not answered yet (1 of 10 questions)" in page
    assert "agreement in the best layer" in page


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("option", "table", "questions"),
    [
        ("removals", "removals", ["key_removals"]),
        (
            "prefixes",
            "predictions",
            ["layer_activity", "layer_composition", "refinement_match", "refinement_confidence", "refinement_events"],
        ),
    ],
)
def test_a_question_whose_table_was_not_asked_for_names_the_command_that_makes_it(
    option: str, table: str, questions: list[str], tmp_path: Path
) -> None:
    """`analyze` cannot answer it, so nobody is sent there."""
    out = mined_text("handmade:planted", tmp_path, "one two three four five six\n" * 40, **{option: 0})
    write_all(open_atlas(out))
    reader = client(out)
    page = reader.get("/").text
    assert "Not answered yet" not in page
    left_out = page[page.index("was not mined: ") :].partition("</p>")[0]
    assert re.findall(r'<a href="/questions/(\w+)"[^>]*>[^<]+</a>', left_out) == questions
    for question in questions:
        own = html.unescape(reader.get(f"/questions/{question}").text)
        assert f"make its table {table} with `mnemoscope mine" in own
    assert all_are_current(open_atlas(out))


def test_a_search_finds_memories_and_marks_what_matched(handbuilt: Path) -> None:
    reader = client(handbuilt)
    found = patient(reader, "/search.json?q=france&in=triggers").json()
    assert ([hit["memory"] for hit in found["hits"]], found["total"]) == (["L0.M0"], 1)
    marked = [part["text"] for part in found["hits"][0]["parts"] if part["marked"]]
    assert [text.strip() for text in marked] == ["France"]
    page = reader.get("/search?q=france&in=triggers").text
    assert re.search(r"<mark>\s*France\s*</mark>", page)
    assert 'href="/L0.M0"' in page
    assert "1 hit" in page
    assert reader.get("/search.json?q=france&in=triggers&layers=1").json()["total"] == 0
    shared = reader.get("/search.json?q=capital").json()["hits"]
    counts = [(hit["memory"], hit["firing"], len(hit["memories"])) for hit in shared]
    assert (counts, len({hit["sentence"] for hit in shared})) == ([("L0.M0", 1, 1), ("L0.M2", 2, 2)], 2)
    page = reader.get("/search?q=capital").text
    assert "2 memories fire in it" in page
    assert f'href="/{shared[1]["memories"][1]}"' in page
    assert 'href="/search?q=capital&amp;in=triggers&amp;layers="' in page, "the counts lead to what they count"
    assert "Nothing found" in reader.get("/search?q=nonesuch").text
    assert set(reader.get("/search.json?q=paris&in=values,triggers").json()["totals"]) == {"values", "triggers"}


def test_a_memory_s_name_opens_it(reader: TestClient) -> None:
    for asked in ("L1.M3", "l1.m3", " L1.M3 "):
        answer = reader.get("/search", params={"q": asked})
        assert (answer.status_code, answer.headers["location"]) == (303, "/L1.M3")
    assert reader.get("/search.json?q=L1.M3").headers["location"] == "/L1.M3.json"
    assert reader.get("/search?q=L9.M3").status_code == 404
    for no_name in ("L٣.M٤", "L1.M²", f"L{'9' * 500}.M0"):
        assert "Nothing found" in reader.get("/search", params={"q": no_name}).text


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/search?q=x&layers=5", "5 is not within the model"),
        ("/search?q=x&layers=one", "write them as 0-3,7"),
        ("/search?q=x&layers=1-0", "does not name layers"),
        ("/search?q=x&in=nowhere", "cannot be searched"),
        ("/search?q=x&page=0", "greater than or equal to 1"),
        ("/search?q=%22", "no letter"),
    ],
)
def test_an_impossible_search_is_one_sentence(reader: TestClient, address: str, sentence: str) -> None:
    answer = patient(reader, address)
    assert answer.status_code == 400
    assert sentence in answer.text
    assert patient(reader, address.replace("/search", "/search.json")).json()["status"] == 400


def test_a_token_knows_who_says_it_and_who_fires_on_it(handbuilt: Path) -> None:
    reader = client(handbuilt)
    found = patient(reader, "/tokens/6.json").json()
    assert (found["token"]["shown"], found["token"]["count"]) == ("·Paris", 2)
    # Every value ranks Paris first; it is also among the twenty bottom tokens of the handmade values.
    every = {f"L{layer}.M{memory}" for layer in (0, 1) for memory in range(4)}
    assert {one["memory"] for one in found["promotes"]} == every
    assert found["promotes"][0]["memory"] in ("L0.M0", "L1.M0")
    assert found["promotes"][0]["probability"] == pytest.approx(0.5)
    top = found["promotes"][0]["top"]
    expected = {"memory": "L0.M1", "top": top, "promotes": False, "label": None, "rank": 0, "triggers": 1}
    assert (found["fires"], reader.get("/tokens/6.json?layers=1").json()["fires"]) == ([expected], [])
    assert reader.get("/tokens/24").status_code == 404
    assert "Token 24" in reader.get("/tokens/24.json").json()["message"]


def test_tokens_are_listed_by_how_often_they_occur_or_how_they_read(handbuilt: Path) -> None:
    reader = client(handbuilt)
    frequent = reader.get("/tokens.json").json()["tokens"]
    assert (frequent[0]["text"], frequent[0]["count"]) == ("The", 3)
    like = patient(reader, "/tokens.json?q=Paris").json()["tokens"]
    assert [one["token"] for one in like] == [6]
