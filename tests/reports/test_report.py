"""What a report says: every number is the answers', the paper stands beside them, and text is only text."""

import json
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from mnemoscope.atlas import verify
from mnemoscope.atlas.schema import THE_PAPERS
from mnemoscope.foundation.formatting import format_value
from mnemoscope.questions import QUESTIONS, load_question
from mnemoscope.questions.answers import load_answers
from reports.reading import Reader, charts, page_without_figures, section, words
from reports.reported_atlas import HOSTILE, SPEC, reported

pytestmark = pytest.mark.full

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def page(reported_atlas: Path) -> str:
    return (reported_atlas / "report" / "index.html").read_text(encoding="utf-8")


def answer_of(directory: Path, question: str) -> pl.DataFrame:
    table = pl.read_parquet(directory / "analyses" / f"{question}.parquet")
    return table.filter(pl.col("value").is_not_null() & pl.col("value").is_finite())


def test_every_question_has_section_figure_and_files_that_open(reported_atlas: Path, page: str) -> None:
    assert re.findall(r'<section id="(\w+)" class="question"', page) == list(QUESTIONS)
    assert list(charts(page)) == sorted(QUESTIONS)
    figures = reported_atlas / "report" / "figures"
    assert {path.name for path in figures.iterdir()} == {
        f"{q}.{end}" for q in QUESTIONS for end in ("svg", "png", "pdf")
    }
    for question in QUESTIONS:
        root = ElementTree.parse(figures / f"{question}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert sum(1 for _ in root.iter("{http://www.w3.org/2000/svg}path")) > 5, question
        png = (figures / f"{question}.png").read_bytes()
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        assert png.endswith(b"IEND\xaeB`\x82")
        assert int.from_bytes(png[16:20]) > 1200
        pdf = (figures / f"{question}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF-")
        assert pdf.rstrip().endswith(b"%%EOF")
        assert "Not answered" not in section(page, question)
    assert verify(reported_atlas) == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_number_of_the_answer_is_in_its_tables(question: str, reported_atlas: Path, page: str) -> None:
    """Row for row: the tables' cells are read back, and each answer is looked up by layer and label."""
    cells: dict[tuple[str, str], str] = {}
    for table in re.findall(r"<table>.*?</table>", section(page, question), flags=re.DOTALL):
        header = [unescape(name) for name in re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)]
        if header[0] == "tenth":
            continue
        for row in re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", table, flags=re.DOTALL):
            first = unescape(re.sub(r"<[^>]*>", "", re.findall(r'<th scope="row">(.*?)</th>', row)[0]))
            cells_of = re.findall(r'<td class="n">(.*?)</td>', row)
            values = [unescape(re.sub(r" <small.*", "", cell)) for cell in cells_of]
            if header[0] == "what":
                cells["all", re.sub(r" \(layer \d+\)$", "", first)] = values[0]
            else:
                cells |= {(first, name): value for name, value in zip(header[1:], values, strict=True)}
    shown = 0
    for row in (
        answer_of(reported_atlas, question).filter(~pl.col("name").str.contains("^(literal_)?decile_")).to_dicts()
    ):
        layer = "all" if row["layer"] is None else str(row["layer"])
        number = load_question(question).number(row["name"])
        assert cells[layer, number.label] == format_value(row["value"], number.form), row
        shown += 1
    assert shown >= 3


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_drawn_number_is_one_of_the_answer(question: str, reported_atlas: Path, page: str) -> None:
    numbers = {
        (row["layer"], float(f"{row['value']:.6g}"))
        for other in (question, "key_patterns")
        for row in answer_of(reported_atlas, other).to_dicts()
    }
    drawn = [
        (row.get("layer"), row["value"])
        for name, rows in charts(page)[question]["datasets"].items()
        if name != "zero" and "_paper_" not in name
        for row in rows
        if row["value"] is not None
    ]
    places = numbers | {(layer, float(f"{1 - value:.6g}")) for layer, value in numbers}  # the border below the changes
    assert len(drawn) >= 2
    assert [place for place in drawn if place not in places] == []


def test_known_numbers_are_said(page: str) -> None:
    """Those that can be read off the atlas: 4 of 8 and 8 of 8 matches."""
    match = words(section(page, "refinement_match"))
    assert "50.0 % in layer 0 and 100 % in layer 1" in match
    said = words(section(page, "glance"))
    assert "agreement in the best layer (the paper: up to 3.5 %) : 33.3 % (layer 0)" in said
    assert "24 memories in all 2 layers" in said
    assert "64.0 % of its 1,000 parameters" in said
    assert "the memories that have at least one positive trigger" in words(section(page, "key_patterns"))


def test_the_first_section_states_every_claim_with_the_verdict_of_its_line(page: str) -> None:
    """In the order of the table below, without its rules; each figure leads to its section."""
    table = section(page, "paper")
    lines = [row for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.DOTALL) if ">Figure " in row]
    expected = [
        (words(re.findall(r'<th scope="row">(.*?)</th>', row, flags=re.DOTALL)[0]), verdict)
        for row in lines
        for verdict in re.findall(r'<span class="verdict[^>]*>(.*?)</span>', row)[:1]
    ]
    first = section(page, "glance")
    items = re.findall(r'<li>(<span class="verdict.*?)<span class="soft">\(the paper', first, flags=re.DOTALL)
    signs = {"yes": "✓ holds", "no": "✗ does not hold", "—": "— not judged"}
    assert [words(item) for item in items] == [f"{signs.get(shown, shown)} {text}" for text, shown in expected]
    assert len(expected) >= 20
    assert re.findall(r'<h4><a href="#(\w+)"', first) == [*THE_PAPERS]


def test_the_papers_numbers_stand_beside_ours(page: str) -> None:
    for where in ("paper", *QUESTIONS):
        asked = QUESTIONS if where == "paper" else (where,)
        every = [claim for question in asked for claim in load_question(question).paper.claims]
        claims = [claim for claim in every if not claim.optional]
        rows = [words(row) for row in re.findall(r"<tr>(.*?)</tr>", section(page, where), flags=re.DOTALL)]
        for claim in claims:
            assert any(" ".join(claim.text.split()) in row and claim.paper in row for row in rows), (where, claim)
    agreement = words(section(page, "value_agreement"))
    assert "up to 3.5 % 33.3 % (layer 0)" in agreement  # the paper's formula; ours is the same here
    assert "the same" in agreement


def test_methods_say_how_it_was_made(page: str) -> None:
    said = words(section(page, "methods"))
    expected = [
        f"model {SPEC}",
        "text four sentences",
        "2 layers of 12 memories, hidden 8, vocabulary 20",
        "1,000, 64.0 % of them in feed-forward layers",
        "projection of streams lens",
        "projection of values gain",
        "seed 7",
        "torch 2.13.0",
        "over memories (Wilson)",
        "over documents (bootstrap, 2000 draws, seed 7)",
        "mnemoscope",
    ]
    for part in expected:
        assert part in said, part


def test_the_striking_memory_is_shown_with_its_triggers(page: str) -> None:
    shown = section(page, "memories")
    assert "<h3>L0.M0 promotes" in shown
    assert words(shown).count("✓") == 6
    assert "100 % of its 25 best triggers are followed by it" in words(shown)
    assert "shallow" in words(shown)


def test_hostile_text_is_text(page: str) -> None:
    read = words(page)
    for text in HOSTILE.values():
        assert text.replace(" ", "·") in read.replace(" ", "·"), text
    assert SPEC in read
    reader = Reader()
    reader.feed(page)
    assert "img" not in reader.tags
    assert reader.tags.count("script") == 3
    assert "1337" not in read
    assert all(char not in json.dumps(charts(page)) or char in SPEC for char in "<>")


def test_the_page_is_one_small_file_that_names_no_address(page: str) -> None:
    assert len(page.encode()) < 5_000_000
    assert (
        re.findall(
            r'<(?:link|iframe|img|object|embed|base)\b|\bsrc="',
            re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL),
        )
        == []
    )
    assert "default-src 'none'" in page
    links = re.findall(r'href="([^"#][^":]*:?)', page)
    assert {link for link in links if ":" in link} == {"data:"}


def test_overlap_and_fewer_prefixes_are_warned_of(tmp_path: Path) -> None:
    corpus = {"spec": "mine", "fingerprint": "b" * 64, "overlap": {"sentences": 3, "of": 40, "share": 0.075}}
    atlas = reported(tmp_path, corpus=corpus, questions={"prefixes_asked": 500, "prefixes": 8})
    found = re.search(r'<aside class="warning".*?</aside>', page_without_figures(load_answers(atlas)), re.DOTALL)
    assert found
    said = words(found.group())
    assert "3 of the 40 validation sentences (7.5 %) are also in the mined text" in said
    assert "8 prefixes of the 500 asked for" in said


def test_fewer_prefixes_than_nobody_asked_for_are_no_warning(tmp_path: Path) -> None:
    """4,000 is what `mine` takes where nobody says a number; most texts hold fewer, which is told as a fact."""
    page = page_without_figures(load_answers(reported(tmp_path, questions={"prefixes_asked": 4000, "prefixes": 8})))
    assert '<aside class="warning"' not in page
    assert "Figures 7 to 11 are asked of 8 prefixes, all that the validation text gives." in words(page)
