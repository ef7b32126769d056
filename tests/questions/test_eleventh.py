"""An eleventh question is two files of one name and a name in the list of questions: everything else follows.

In a copy of the package, in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mnemoscope

QUESTION = '''"""How long are values?"""

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import mean
from mnemoscope.questions.answer_builder import MEMORIES, AnswerBuilder
from mnemoscope.questions.question import Claim, Number, Paper, Question
from mnemoscope.questions.sources import values
from mnemoscope.questions.verdicts import at_least

QUESTION = Question(
    "attention_length",
    title="how long values are",
    paper=Paper(
        figure="Figure 99",
        section="9",
        question="How long is a value?",
        claims=(Claim("values are long", "5", "length", "number", "at least 3", at_least(3)),),
    ),
    numbers=(Number("length", "number", "length of the value, mean"),),
    main="length",
    headline=("length",),
    layer_page=("length",),
    nothing="there is no value",
    interval=MEMORIES,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """By layer and over all: the mean norm."""
    rows, found = values(atlas), AnswerBuilder(QUESTION)
    for layer in atlas.layers:
        found.add(layer, "length", mean(rows.filter(pl.col("layer") == layer)["value_norm"]))
    found.add(None, "length", mean(rows["value_norm"]))
    return found.frame()
'''
FIGURE = '''"""Figure 99: how long values are."""

from mnemoscope.show.figures.chart import Figure, Series, ends
from mnemoscope.show.figures.colours import BLUE
from mnemoscope.show.figures.panels import lines


def figure(answer):
    """A line over the layers."""
    panels = lines(answer, [Series("length", BLUE)], name="attention_length", title="length", y="norm", format="~g")
    means, differs = "Long values say much.", "Trained without decay, values are longer."
    return Figure(panels, "The mean norm.", f"Values are {ends(answer, 'length')} long.", means, differs)
'''
SCRIPT = """
import json, sys
from pathlib import Path
from mnemoscope.cli import main
from reports.reported_atlas import reported
from web.served import client

folder = Path(sys.argv[1])
reported(folder)
assert main(["analyze", str(folder), "attention_length"]) == 0
assert main(["report", str(folder)]) == 0
reader = client(folder)
pages = {name: reader.get(name).json() for name in ("/questions.json", "/questions/attention_length.json",
                                                    "/layers/1.json")}
pages["drawing"] = reader.get("/questions/attention_length").text
(folder / "pages.json").write_text(json.dumps(pages))
"""


@pytest.mark.full
def test_two_files_and_one_line_are_a_question(tmp_path: Path) -> None:
    sources, atlas = tmp_path / "src" / "mnemoscope", tmp_path / "atlas"
    shutil.copytree(Path(mnemoscope.__file__).parent, sources, ignore=shutil.ignore_patterns("__pycache__", "pydocs"))
    (sources / "questions" / "beyond" / "attention_length.py").write_text(QUESTION)
    (sources / "show" / "figures" / "beyond" / "attention_length.py").write_text(FIGURE)
    listed = sources / "atlas" / "schema.py"
    end = '"width", "importance")\n'
    assert listed.read_text().count(end) == 1
    listed.write_text(listed.read_text().replace(end, '"width", "importance", "attention_length")\n'))
    path = os.pathsep.join([str(sources.parent), str(Path(__file__).parents[1])])
    words, there = [sys.executable, "-c", SCRIPT, str(atlas)], os.environ | {"PYTHONPATH": path}
    made = subprocess.run(words, env=there, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    # The table in the terminal and in the atlas: norms 1 to 12 in each layer.
    said = " ".join(made.stdout.split())
    assert "attention_length (Figure 99) How long is a value? layer length 0 6.5 1 6.5 all 6.5" in said
    assert "values are long" in said
    document = json.loads((atlas / "analyses" / "attention_length.json").read_text())
    assert [row["value"] for row in (*document["layers"], *document["totals"])] == [6.5, 6.5, 6.5]
    # The page, with its sentence, comparison and table; the overview of questions; a layer's page.
    pages = json.loads((atlas / "pages.json").read_text())
    page = pages["/questions/attention_length.json"]
    assert page["reading"] == "Values are 6.50 in layer 0 and 6.50 in layer 1 long."
    assert [(line["ours"], line["shown"], line["rule"]) for line in page["comparison"]] == [
        ("6.50", "yes", "at least 3")
    ]
    assert page["tables"][0]["header"] == ["layer", "length of the value, mean", "cases"]
    assert "<svg" in pages["drawing"]
    about = {one["question"]: one["about"] for one in pages["/questions.json"]["questions"]}
    assert (list(about)[-1], about["attention_length"]) == ("attention_length", "how long values are")
    assert "length of the value, mean" in json.dumps(pages["/layers/1.json"])
    # The report's section and figure.
    report = (atlas / "report" / "index.html").read_text()
    assert 'id="attention_length"' in report
    assert "Values are 6.50 in layer 0" in report
    assert (atlas / "report" / "figures" / "attention_length.svg").is_file()
