"""What a notebook shows of an atlas, a memory and a question, and the chart behind it."""

import json
import re
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import altair as alt
import pytest

import mnemoscope as ms
from mnemoscope.errors import OptionError
from mnemoscope.foundation.progress import NOTE, WORKER, report_to, worker_note
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import lacks_tables

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
        cell, place = self, len(self.lines)

        class Handle:
            def display(self, shown: dict[str, str], *, raw: bool) -> None:
                cell.lines.append(shown["text/plain"])

            def update(self, shown: dict[str, str], *, raw: bool) -> None:
                cell.lines[place] = shown["text/plain"]

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


def test_notes_of_a_bar_are_lines(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    with report_to(True) as progress:
        progress(NOTE, 0, None, "the text has no validation documents")
        for what in ("started", "ended", "lost"):
            progress(WORKER, 0, None, worker_note("w-1", what))
    assert (cell.lines, capsys.readouterr().err) == ([], "the text has no validation documents\nworker w-1 lost\n")


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
    first = cells(html)[3:6]
    assert first[0] == f"{best['coefficient']:.3f}"
    assert first[1].endswith("«·cat»") or first[1].endswith("«cat»")
    top = memory.value()["top_texts"][0][0]
    assert f"promotes {top.replace(' ', '·')}" in html


def test_what_a_text_holds_is_escaped(atlas: ms.Atlas) -> None:
    html = "".join(atlas[f"L{layer}.M{memory}"]._repr_html_() for layer in range(3) for memory in range(6))
    assert "<b>cat" not in html
    assert "<script" not in html


def test_a_memory_that_never_fired_is_shown(atlas: ms.Atlas) -> None:
    silent = [atlas[f"L{layer}.M{memory}"] for layer in range(3) for memory in range(6)]
    silent = [memory for memory in silent if not memory.triggers().height]
    assert silent
    assert all("promotes" in memory._repr_html_() for memory in silent)


@pytest.mark.fast(1, full=5)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_chart_holds_the_answer(atlas: ms.Atlas, question: str) -> None:
    """Every number of the chart's data is one of the answer's; nothing is written into the atlas."""
    if lacks_tables(atlas, question):
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
