"""The files of a report: what is written and written again, what is refused, and what is left alone."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
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
    assert again.made == ()
    assert sorted(again.files) == sorted(files_of(again.directory).keys() - {"manifest.json"})
    assert files_of(again.directory) == files_of(reported_atlas / "report")
    assert verify(atlas) == []


def test_a_changed_answer_is_made_again(reported_atlas: Path, tmp_path: Path) -> None:
    atlas = shutil.copytree(reported_atlas, tmp_path / "atlas")
    table = atlas / "analyses" / "refinement_match.parquet"
    right = table.read_bytes()
    pl.read_parquet(table).with_columns(value=pl.lit(0.123)).write_parquet(table)
    assert write_report(atlas).made == ("refinement_match",)
    assert table.read_bytes() == right
    assert "12.3" not in words(section((atlas / "report" / "index.html").read_text(), "refinement_match"))


def compositions(found: LoadedAnswers) -> str:
    """What the page says about the last layer's compositions."""
    return words(section(page_without_figures(found), "compositions"))


def test_answers_follow_what_people_judge(tmp_path: Path) -> None:
    atlas = reported(tmp_path)
    assert "Nobody has judged these." in compositions(load_answers(atlas))
    first = {path.name: path.read_bytes() for path in (tmp_path / "analyses").iterdir()}
    with closing(sqlite3.connect(tmp_path / ANNOTATIONS)) as database:
        database.executescript(
            SCHEMA + "CREATE TABLE items (id, memory); CREATE TABLE verdicts (id, author, made_at, item, verdict)"
        )
        assert load_answers(atlas).made == (), "nobody has said anything yet"
        database.executescript(
            "INSERT INTO items VALUES (1, 0), (2, 4), (3, 8);"
            "INSERT INTO verdicts VALUES (1, 'Ada', '1', 1, 'distant'), (2, 'Ada', '2', 2, 'distant'),"
            "(3, 'Ada', '3', 3, 'related')"
        )
        found = load_answers(atlas)
        assert found.made == ("refinement_events",)
        said = compositions(found)
        assert "Here people have judged 3 cases: they call the new token unlike both in 66.7 % [20.8 %, 93.9 %]" in said
        assert "Nobody" not in said
        assert load_answers(atlas).made == ()
        database.execute(
            "INSERT INTO judgements"
            " VALUES (1, 'Ada', '2026-01-02T10:00:00Z', 0, 0, 0, 0, 'both', 'a word', '[0, 1, 2]')"
        )
        database.commit()
        found = load_answers(atlas)
        assert found.made == ("key_patterns",)
        assert found.answers["key_patterns"].total("people_covered") is not None
        assert verify(tmp_path) == []
    (tmp_path / ANNOTATIONS).unlink()
    assert load_answers(atlas).made == ("key_patterns", "refinement_events")
    assert {path.name: path.read_bytes() for path in (tmp_path / "analyses").iterdir()} == first


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
    with pytest.raises(AtlasExists, match="holds something else than a report"):
        write_report(atlas, other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    with pytest.raises(OptionError, match="lies inside the atlas"):
        write_report(atlas, atlas.path / "triggers")


@pytest.mark.parametrize(
    "said", [{"files": None}, {"files": {"index.html": "x"}}, {"atlas": "0" * 64, "files": ["index.html"]}, [], 1]
)
def test_a_web_app_is_no_report(answered_atlas: Path, tmp_path: Path, said: object) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "manifest.json").write_text(json.dumps(said))
    (other / "index.html").write_text("mine")
    with pytest.raises(AtlasExists, match="holds something else than a report"):
        write_report(answered_atlas, other)
    assert (other / "index.html").read_text() == "mine"


def test_the_command_prints_where_the_page_is(answered_atlas: Path, tmp_path: Path, capsys: Capture) -> None:
    without_predictions(few := tmp_path / "few")
    assert main(["report", str(few)]) == 0
    assert capsys.readouterr().out.startswith(f"{few / 'report' / 'index.html'}: ")
    atlas = shutil.copytree(answered_atlas, tmp_path / "atlas")
    assert main(["report", str(atlas), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == str(atlas / "report" / "index.html")
    assert len(said["files"]) == 1 + 3 * len(QUESTIONS)
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


def test_a_report_is_made_without_torch(tmp_path: Path) -> None:
    reported(tmp_path)
    script = (
        "import sys\nfrom mnemoscope.cli import main\n"
        f"assert main(['report', {str(tmp_path)!r}]) == 0\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
