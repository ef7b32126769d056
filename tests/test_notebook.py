"""What a notebook shows of an atlas, a memory and a question, and the chart behind it."""

import json
import re
import sys
import threading
import time
from functools import partial
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import altair as alt
import pytest

import mnemoscope as ms
from mnemoscope.errors import OptionError
from mnemoscope.foundation.progress import NOTE, WORKER, report_loading, report_to, reporting_late, worker_note
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import lacking_table
from web.served import client
from web.test_examples_in_colour import coloured_atlas, lit

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> ms.Atlas:
    """Every sentence twice: as mined text and, but for one word, as validation text."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "text.txt").write_text("\n".join([*PLANTED_SENTENCES, "<b>cat</b> & dog"]) + "\n")
    (folder / "other.txt").write_text("\n".join(f"{line} again" for line in PLANTED_SENTENCES) + "\n")
    model, text = "handmade:planted", folder / "text.txt"
    return ms.open_atlas(
        ms.mine(model, text, out=folder / "atlas", split="line", validation=str(folder / "other.txt"), device="cpu")
    )


class Cell:
    """What IPython keeps of a cell's displays: one that is updated is replaced in place."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def handle(self) -> Any:
        cell = self

        class Handle:
            def display(self, shown: dict[str, str], *, raw: bool) -> None:
                self.place = len(cell.lines)
                cell.lines.append(shown["text/plain"])

            def update(self, shown: dict[str, str], *, raw: bool) -> None:
                cell.lines[self.place] = shown["text/plain"]

        return Handle()


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A notebook's cell, without IPython."""
    found, display = Cell(), ModuleType("IPython.display")
    display.DisplayHandle = found.handle  # type: ignore[attr-defined]
    for name, module in (("IPython", ModuleType("IPython")), ("IPython.display", display), ("ipykernel", display)):
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_a_bar_leaves_one_line_and_its_rates_are_true(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    with report_to(True) as progress:
        for layer in range(3):  # a stage that comes again, and one that goes on where another run stopped
            for done in (0, 50, 100):
                progress("values", done, 100, "memories")
            progress("mining", 4e9 + layer, 5e9, "tokens")
            # Nothing was counted: there is no rate, and no time left.
            assert re.search(r"\[\d\d:\d\d<\?, \?", cell.lines[0]), cell.lines
        progress("predictions", 0, 8, "layers")
        time.sleep(0.2)
        progress("predictions", 8, 8, "layers; 2 workers")
    (line,) = cell.lines
    assert line.startswith("predictions: 100%")
    assert "8.00/8.00" in line
    assert 0 < float(re.search(r"([\d.]+) layers/s, 2 workers\]$", line)[1]) <= 40  # type: ignore[index]
    assert capsys.readouterr() == ("", "")


def test_a_stage_without_a_count_says_how_long_all_of_it_took(cell: Cell) -> None:
    with report_to(True) as progress:
        progress("values", 1, 2, "memories")
        time.sleep(1.1)
        progress("sealing", 0, None, "")
    (line,) = cell.lines
    assert re.fullmatch(r"sealing \[00:0[1-9]\]", line)


def test_notes_of_a_bar_are_lines(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    with report_to(True) as progress:
        progress(NOTE, 0, None, "the text has no validation documents")
        for what in ("started", "ended", "lost"):
            progress(WORKER, 0, None, worker_note("w-1", what))
        progress("values", 1, 2, "memories")
    assert cell.lines[:2] == ["the text has no validation documents", "worker w-1 lost"]
    assert (len(cell.lines), capsys.readouterr()) == (3, ("", ""))


def test_work_without_progress_leaves_nothing(cell: Cell) -> None:
    with report_to(False) as progress:
        progress("values", 1, 2, "memories")
    assert cell.lines == []


def cells(html: str) -> list[str]:
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)


def test_an_atlas_says_what_was_mined(atlas: ms.Atlas) -> None:
    shown = cells(atlas._repr_html_())
    assert shown[shown.index("model") + 1].startswith("handmade:planted, ")
    assert shown[shown.index("memories") + 1] == "18 in layers 0-2 with memories 0-5"
    assert shown[shown.index("folder") + 1] == str(atlas.path)


def test_a_memory_shows_its_prefixes_and_what_it_promotes(atlas: ms.Atlas) -> None:
    memory = atlas["L0.M0"]
    html = memory._repr_html_()
    best = memory.triggers().row(0, named=True)
    first = re.search(r'<li>\s*<span class="m"[^>]*>([^<]*)</span>.*?<mark>([^<]*)</mark>', html, re.DOTALL)
    assert first is not None
    assert (float(first[1]), first[2].strip("·")) == (pytest.approx(best["coefficient"], rel=0.01), "cat")
    top = memory.value()["top_texts"][0][0]
    assert f'promotes <a class="token" >{top.replace(" ", "·")}</a>' in html


def test_what_a_text_holds_is_escaped(atlas: ms.Atlas) -> None:
    html = "".join(atlas[f"L{layer}.M{memory}"]._repr_html_() for layer in range(3) for memory in range(6))
    assert "<b>cat" not in html
    assert "<script" not in html


def test_a_memory_that_never_fired_is_shown(atlas: ms.Atlas) -> None:
    silent = [atlas[f"L{layer}.M{memory}"] for layer in range(3) for memory in range(6)]
    silent = [memory for memory in silent if not memory.triggers().height]
    assert silent
    assert all("Its value" in memory._repr_html_() for memory in silent)


def test_examples_are_in_the_colours_of_the_memory_s_page(tmp_path: Path) -> None:
    """Every token with the class and the number that the page gives it, and the rules of both in the output."""
    folder = coloured_atlas(tmp_path)
    html, page = ms.open_atlas(folder)["L0.M0"]._repr_html_(), client(folder).get("/L0.M0").text
    own, on_page = (lit(text) for text in (html, page))
    assert own == on_page
    assert ("·is", "h9", "3.00") in own[0]
    style, shown = html.removeprefix('<div class="mnemoscope"><style>').split("</style>")
    assert "h2 minus" in shown
    assert ".mnemoscope.mnemoscope .h9{background: var(--heat);}" in style
    assert ".mnemoscope.mnemoscope .minus{--heat: #e3a468;}" in style
    assert ".h8{" not in style  # what is not used stays away
    check_alone(html)


def check_alone(html: str) -> None:
    """It needs no script and no file, leads nowhere, and its rules hold in it alone."""
    style, shown = html.removeprefix('<div class="mnemoscope"><style>').split("</style>")
    assert not re.search(r"<script|<link|<img|href=|src=|url\(|@import", html)
    assert shown.count("<div") + 1 == shown.count("</div>")
    rules = re.sub(r"@media[^{]*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", style)
    selectors = [one for rule in re.findall(r"([^{}]+)\{", rules) for one in rule.split(",")]
    assert len(selectors) > 20
    assert [one for one in selectors if not one.strip().startswith(".mnemoscope.mnemoscope")] == []


def test_an_attribution_has_bars_as_long_as_its_numbers(atlas: ms.Atlas) -> None:
    found = ms.attribute("handmade:planted", PLANTED_SENTENCES[0], atlas=atlas)
    html = found._repr_html_()
    check_alone(html)
    rows = found.memories.head(20).to_dicts()
    assert len(rows) > 1
    drawn = re.findall(r'<tr><th scope="row"><a class="memory" >(.*?)</a></th>(.*?)</tr>', html, re.DOTALL)
    assert [name for name, _ in drawn] == [row["memory"] for row in rows]
    most = max(abs(row["ablation"]) for row in rows)
    for (_, cells_of), row in zip(drawn, rows, strict=True):
        width = re.search(r'<rect class="fill" width="([0-9.]+)"', cells_of)
        assert width is not None
        assert float(width[1]) == pytest.approx(100 * abs(row["ablation"]) / most, abs=0.006)
        assert ('class="bar new"' in cells_of) == (row["ablation"] < 0)
        assert f"{row['ablation']:+.2f}".replace("-", "\N{MINUS SIGN}") in cells_of
        assert (row["label"] or "") in unescape(cells_of)
    bars = re.findall(r"<title>(\w+)(?: of layer ([0-9]+))?: ([^<]*)</title>", html)
    shown = {(kind, layer): float(value.replace("\N{MINUS SIGN}", "-")) for kind, layer, value in bars}
    for row in found.parts().filter(found.parts()["part"] == "memories").to_dicts():
        assert shown["memories", str(row["layer"])] == pytest.approx(row["direct"], abs=0.006)
    assert shown["F", ""] == pytest.approx(found.difference, abs=0.006)


def test_a_difference_has_bars_on_either_side(atlas: ms.Atlas) -> None:
    one, other = PLANTED_SENTENCES[:2]
    found = ms.diff("handmade:planted", one, other_prompt=other, atlas=atlas)
    html = found._repr_html_()
    check_alone(html[: html.rindex("<table")])
    measure = found.sorted_by
    rows = [row for row in found.memories.to_dicts() if row[measure]]
    names = re.findall(r'<a class="memory" >(.*?)</a>', html)
    expected = [
        row["memory"]
        for sign in (1, -1)
        for row in sorted((one for one in rows if one[measure] * sign > 0), key=lambda one: -abs(one[measure]))[:20]
    ]
    assert names == expected
    assert names


def test_a_trace_brings_few_rules(atlas: ms.Atlas) -> None:
    html = ms.trace("handmade:planted", PLANTED_SENTENCES[0])._repr_html_()
    check_alone(html)
    assert len(html.partition("</style>")[0]) < 8_000


def test_loading_is_one_line_and_a_second_load_inside_adds_none(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    """What is loaded inside other work reports to its bar; quick loading is not told at all."""
    ms.load_model("handmade:planted")
    with report_to(True) as progress:
        progress("mining", 0, 10, "tokens")
        with reporting_late(progress, after=0.0):
            time.sleep(0.05)
            report_loading("its weights")
            ms.load_model("handmade:planted")
            with report_to(True) as inner:
                inner("values", 1, 2, "memories")
    assert len(cell.lines) == 1
    assert cell.lines[0].startswith("values:  50%")
    with report_to(True) as progress, report_to(False) as silent:
        silent("values", 1, 2, "memories")
        ms.load_model("handmade:planted")
    assert len(cell.lines) == 1
    assert capsys.readouterr() == ("", "")


def test_a_model_that_loads_long_says_what_of_it(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, float | None, str]] = []
    monkeypatch.setattr(threading, "Timer", partial(quick_timer, threading.Timer))
    ms.load_model("builtin:pydocs", progress=lambda *report: told.append(report))
    notes = [note for _, _, total, note in told if total is None]
    parts = ("tokenizer", "weights", "fingerprint", "proof", "proof, sentences alone")
    assert notes[-5:] == [f"builtin:pydocs: its {part}" for part in parts]
    counted = [(done, total) for _, done, total, note in told if note == "layers"]
    assert counted == [(done, 6) for done in range(7)]
    weights = [(done, total) for _, done, total, note in told if note == "weights"]
    assert weights == [(done, len(weights)) for done in range(len(weights))]
    assert len(weights) > 50
    assert cell.lines == []


def quick_timer(timer: Any, _: float, function: Any) -> Any:
    return timer(0.0, function)


@pytest.mark.fast(1, full=5)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_chart_holds_the_answer(atlas: ms.Atlas, question: str) -> None:
    """Every number of the chart's data is one of the answer's; nothing is written into the atlas."""
    if lacking_table(atlas, question):
        pytest.skip("its table is not made by mining")
    before = sorted(atlas.path.rglob("*"))
    found = ms.answer(atlas, question)
    if found.filter(found["value"].is_not_null()).is_empty():
        pytest.skip("the planted text has no case of it")
    drawn = ms.chart(atlas, question)
    assert isinstance(drawn, alt.VConcatChart)
    specification = json.loads(drawn.to_json())
    values = [0.0, 1.0, *found["value"].drop_nulls()]
    rows = [row for data in specification["datasets"].values() for row in data]
    numbers = [row["value"] for row in rows if isinstance(row.get("value"), float)]
    assert numbers or question in ("value_rank", "value_confidence")
    assert all(min(abs(number - value) for value in values) <= 1e-5 * abs(number) for number in numbers)
    assert sorted(atlas.path.rglob("*")) == before


def test_a_chart_of_no_question(atlas: ms.Atlas) -> None:
    with pytest.raises(OptionError, match="'figure_44' is not a question"):
        ms.chart(atlas, "figure_44")


def test_the_notebook_has_no_output_of_a_machine() -> None:
    document = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
