"""The files of a report: what is written and written again, what is refused, and what is left alone."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.annotate.judgements.reading import ANNOTATIONS
from mnemoscope.atlas import Atlas, verify
from mnemoscope.cli import main
from mnemoscope.errors import AtlasExists, OptionError
from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import LoadedAnswers, load_answers
from mnemoscope.show.export import write_report
from reports.reading import page_without_figures, section, words
from reports.reported_atlas import MEMORIES, reported
from support.handwritten_judgements import SCHEMA

pytestmark = pytest.mark.full
Capture = pytest.CaptureFixture[str]


def without_predictions(directory: Path) -> Atlas:
    """An atlas that answers six questions, whose report is soon drawn."""
    once = {layer: [(memory, 6) for memory in range(MEMORIES)] for layer in range(2)}
    removals = [(0, 0, 0, removed, 2.0, 1.0) for removed in ("first", "last", "random")]
    return reported(directory, prefixes=None, predictions={}, triggers=once, removals=removals, patterns=())


def test_a_missing_table_is_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    done = write_report(without_predictions(tmp_path))
    without = ("layer", "refinement", "attention", "lenses")
    lacking = [question for question in QUESTIONS if question.startswith(without)]
    assert list(done.unanswered) == lacking
    page = (tmp_path / "report" / "index.html").read_text()
    for question in lacking:
        said = words(section(page, question))
        assert "Not answered for this atlas:" in said
        assert re.search(r"(prefixes|predictions)", said)
        assert "mnemoscope mine" in said
        assert not (tmp_path / "report" / "figures" / f"{question}.svg").exists()
    assert "Not answered" not in section(page, "value_rank")
    assert verify(tmp_path) == []


def files_of(report: Path) -> dict[str, bytes]:
    return {path.relative_to(report).as_posix(): path.read_bytes() for path in report.rglob("*") if path.is_file()}


def test_the_same_atlas_gives_the_same_bytes(reported_atlas: Path, tmp_path: Path) -> None:
    atlas = shutil.copytree(reported_atlas, tmp_path / "atlas")
    (atlas / "report" / "index.html").write_text("old")
    again = write_report(atlas)
    assert (again.made, sorted(again.files)) == ((), sorted(files_of(again.directory).keys() - {"manifest.json"}))
    assert (files_of(again.directory), verify(atlas)) == (files_of(reported_atlas / "report"), [])


def compositions(found: LoadedAnswers) -> str:
    """What the page says about the last layer's compositions."""
    return words(section(page_without_figures(found), "compositions"))


def test_what_people_call_compositions_is_told(tmp_path: Path) -> None:
    """That answers are made again where people say something else, tests/questions/test_stored_answers.py holds."""
    atlas = reported(tmp_path)
    assert "Nobody has judged these." in compositions(load_answers(atlas))
    with closing(sqlite3.connect(tmp_path / ANNOTATIONS)) as database:
        database.executescript(
            SCHEMA + "CREATE TABLE items (id, memory); CREATE TABLE verdicts (id, author, made_at, item, verdict);"
            "INSERT INTO items VALUES (1, 0), (2, 4), (3, 8);"
            "INSERT INTO verdicts VALUES (1, 'Ada', '1', 1, 'distant'), (2, 'Ada', '2', 2, 'distant'),"
            "(3, 'Ada', '3', 3, 'related')"
        )
    said = compositions(load_answers(atlas))
    assert "Judged here by 1 person: of 3 cases the new token is unlike both in 66.7 % [20.8 %, 93.9 %]." in said
    assert "Nobody" not in said


def test_a_report_elsewhere_is_refreshed_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    atlas = without_predictions(tmp_path / "atlas")
    out = tmp_path / "out"
    write_report(atlas, out)
    assert "../analyses" not in (out / "index.html").read_text()
    assert not (atlas.path / "report").exists()
    (out / "index.html").write_text("old")
    write_report(atlas, out)
    assert (out / "index.html").read_text() != "old"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(AtlasExists, match="holds something other than a report"):
        write_report(atlas, other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    with pytest.raises(OptionError, match="lies inside the atlas"):
        write_report(atlas, atlas.path / "triggers")


def test_the_command_prints_where_the_page_is(answered_atlas: Path, tmp_path: Path, capsys: Capture) -> None:
    without_predictions(few := tmp_path / "few")
    assert main(["report", str(few)]) == 0
    assert capsys.readouterr().out.startswith(f"{few / 'report' / 'index.html'}: ")
    atlas = shutil.copytree(answered_atlas, tmp_path / "atlas")
    assert main(["report", str(atlas), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["page"], len(said["files"])) == (str(atlas / "report" / "index.html"), 1 + 3 * len(QUESTIONS))
    assert said["unanswered"] == {}


def test_bad_paths_end_in_one_plain_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("no atlas")
    (tmp_path / "empty").mkdir()
    reported(tmp_path / "atlas")
    wrong = [["nowhere"], ["file"], ["empty"], ["atlas", "--out", "file"], ["atlas", "--out", "atlas/values"]]
    for first, *rest in wrong:
        arguments = [str(tmp_path / first), *(one if one == "--out" else str(tmp_path / one) for one in rest)]
        assert main(["report", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("mnemoscope: ")
        assert "bug" not in err
