"""`analyze`: what it prints, what it writes, and what it says when the atlas lacks something."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.schema import question_named
from mnemoscope.cli import main
from mnemoscope.errors import OptionError
from mnemoscope.questions import BEYOND, QUESTIONS, load_question, write_all
from mnemoscope.questions.answers import load_answers
from mnemoscope.questions.sources import DOCUMENTS
from mnemoscope.show.figures.sections import section
from support.handbuilt_answers import RULERS, build_answers
from support.handbuilt_atlas import build_atlas

Capture = pytest.CaptureFixture[str]

ON_PREFIXES = [question for question in QUESTIONS if load_question(question).interval == DOCUMENTS]
WITHOUT_TABLES = [question for question in QUESTIONS if question in ("key_removals", *ON_PREFIXES, *BEYOND)]
LAYERS = {0: [("said", 7), ("said", 7), ("other", 3), ("other", 3)], 1: [("said", 7)] * 4}


def whole(directory: Path) -> Atlas:
    """Two layers; at layer 0 half of the four prefixes match, at layer 1 all do."""
    value = (6, 6, 0, 0.5, 1.0, -1.0)
    removals = [(0, 0, rank, removed, 2.0, 1.0) for rank in (0, 1) for removed in ("first", "last", "random")]
    places = [(prefix, layer, row) for layer, rows in LAYERS.items() for prefix, row in enumerate(rows)]
    predictions = {(prefix, layer): {"residual_top": top} for prefix, layer, (_, top) in places}
    return build_answers(
        directory,
        triggers={0: [(0, 6), (0, 6)], 1: []},
        values={0: [value] * 4, 1: [value] * 4},
        next_counts={6: 4},
        removals=removals,
        prefixes=[(document, 1, 6, 7) for document in range(4)],
        predictions=predictions,
        patterns=[(0, 0, "shallow", [0])],
        roles={0: [(0, 1)] * 4, 1: [(1, 0)] * 4},
        width=[0, 1, 2],
        memorised=[(False, 32, [0])],
        lenses=RULERS,
        importance={layer: [(1, 2, 3, 4)] * 4 for layer in (0, 1)},
    )


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_a_named_question_is_printed_and_written(tmp_path: Path, capsys: Capture) -> None:
    whole(tmp_path)
    assert main(["analyze", str(tmp_path), "refinement_match"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = lines_of(out)
    assert "softmax(r" in out  # why ours is another formula
    why = next(number for number, line in enumerate(lines) if line[:3] == ["The", "paper", "reads"])
    assert lines[:why] + lines[-1:] == [
        ["refinement_match", "(Figure", "9)"],
        *lines_of("For which share of prefixes does the residual of a layer already have the model's final top token?"),
        ["layer", *("literal", "match"), *("literal", "match", "bare"), "match"],
        ["0", "0.0%", "0.0%", "50.0%"],
        ["1", "0.0%", "0.0%", "100.0%"],
        *lines_of("by the paper's formula by ours paper"),
        *lines_of("0.0% (0.0% to 0.0%) 50.0% (0.0% to 100.0%) about a third decided in the bottom few layers"),
        *lines_of(f"1 of {len(QUESTIONS)} questions, written to {tmp_path / 'analyses'}"),
    ]
    written = sorted(path.name for path in (tmp_path / "analyses").iterdir())
    assert written == ["manifest.json", "refinement_match.json", "refinement_match.parquet"]
    assert verify(tmp_path) == []


def test_all_questions_are_answered_if_none_is_named(tmp_path: Path, capsys: Capture) -> None:
    whole(tmp_path)
    assert main(["analyze", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    titles = [line.split()[0] for line in out.splitlines() if line.startswith(QUESTIONS)]
    assert tuple(titles) == QUESTIONS
    assert out.splitlines()[-1] == f"{len(QUESTIONS)} of {len(QUESTIONS)} questions, written to {tmp_path / 'analyses'}"
    assert max(map(len, out.replace(str(tmp_path), "ATLAS").splitlines())) <= 100
    assert verify(tmp_path) == []


def test_one_json_document_holds_what_was_written(tmp_path: Path, capsys: Capture) -> None:
    whole(tmp_path)
    assert main(["analyze", str(tmp_path), "value_rank", "value_agreement", "value_rank", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["answers"]) == ["value_agreement", "value_rank"]  # in the paper's order, each once
    assert shown["unanswered"] == {}
    for question, document in shown["answers"].items():
        assert document == json.loads((tmp_path / "analyses" / f"{question}.json").read_text())


def test_what_cannot_be_answered_is_said_and_the_rest_answered(tmp_path: Path, capsys: Capture) -> None:
    build_answers(tmp_path, triggers={0: []}, removals=None, prefixes=None)
    assert main(["analyze", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"4 of {len(QUESTIONS)} questions, written to {tmp_path / 'analyses'}")
    assert [line.split(":")[1].strip() for line in lines[at + 1 :]] == WITHOUT_TABLES
    assert lines[at + 1] == (
        f"not answered: key_removals: {tmp_path} has no table removals; make it with "
        f"`mnemoscope mine gpt2 'my text.txt' --out {tmp_path} --seed 7 --force`"
    )
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["unanswered"]) == WITHOUT_TABLES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["key_removals"], "has no table removals; make it with `mnemoscope mine"),
        (["value_rank", "refinement_match"], "has no table predictions; make it with `mnemoscope mine"),
        (["value_rank", "--layers", "3"], "No such option"),
    ],
)
def test_what_is_refused_leaves_no_trace(words: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    build_answers(tmp_path, triggers={0: []}, removals=None, prefixes=None)
    assert main(["analyze", str(tmp_path), *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err
    assert [path.name for path in (tmp_path / "analyses").iterdir()] == ["manifest.json"]


SHEET = """prefix,author,author_kind,verdict
0,Ada,person,distant
1,Ada,person,related
0,A Bot,model,related
"""


def test_a_sheet_of_judgements_is_imported_first(tmp_path: Path, capsys: Capture) -> None:
    atlas, sheet = tmp_path / "atlas", tmp_path / "sheet.csv"
    composed = {"residual_top": 1, "ffn_top": 2, "output_top": 3}
    build_answers(atlas, prefixes=[(d, 1, 6, 7) for d in range(3)], predictions={(d, 0): composed for d in range(3)})
    before = sorted(path.relative_to(atlas) for path in atlas.rglob("*"))
    asked = ["analyze", str(atlas), "figure11", "--judgements", str(sheet)]
    sheet.write_text(SHEET + "3,Ada,person,distant\n")
    assert main(asked) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        "sheet.csv line 5: prefix '3' is no composition that the atlas lists; it lists 3; nothing was imported" in err
    )
    assert sorted(path.relative_to(atlas) for path in atlas.rglob("*")) == before
    sheet.write_text(SHEET)
    for added in ("3 judgements", "0 judgements"):
        assert main(asked) == 0
        out = capsys.readouterr().out
        assert f"{added} added from {sheet}\n" in out
        assert re.search(r"50.0% \(9.5% to 90.5%\) .* last-layer compositions +\n", out)
        assert re.search(r"\n0.0% \(0.0% to 79.3%\) .* last-layer compositions +\n.* judged distant by a +\n", out)
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judgements_added"] == 0
    answers = load_answers(open_atlas(atlas)).answers
    lines = section("refinement_events", answers)["comparison"]
    said = {line["text"].partition(" (")[0]: line["ours"].replace("\xa0", " ") for line in lines}
    assert said["last-layer compositions judged distant"] == "50.0 % (judged by 1 person)"
    assert said["last-layer compositions judged distant by a language model"] == "0 % (judged by the model A Bot)"
    assert section("refinement_events", answers)["judged"] == "by 1 person and by the model A Bot"


def test_a_part_is_to_be_joined_first(tmp_path: Path, capsys: Capture) -> None:
    part = build_atlas(tmp_path / "p", part=(2, 3))
    assert main(["analyze", str(part)]) == 2
    assert "part 2 of 3; join all parts with `mnemoscope merge`" in capsys.readouterr().err


def test_missing_patterns_are_made_where_they_are_needed(tmp_path: Path, capsys: Capture) -> None:
    """The hand-built atlas has too few triggers for a pattern, so none is found; but the table is there."""
    atlas = build_atlas(tmp_path / "a")
    assert main(["analyze", str(atlas), "value_rank"]) == 0
    assert not (atlas / "patterns.parquet").exists()
    assert main(["analyze", str(atlas), "key_patterns", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.split("written to")[-1].split("\n", 1)[1])
    assert {row["name"]: row["value"] for row in shown["answers"]["key_patterns"]["totals"]}["covered"] == 0.0
    assert verify(atlas) == []


def test_patterns_made_again_bring_the_answers_that_depend_on_them_along(tmp_path: Path, capsys: Capture) -> None:
    """The patterns written by hand explain a prefix; made anew there are none, and key_patterns says so, too."""
    atlas = whole(tmp_path)
    write_all(atlas)
    before = (tmp_path / "analyses" / "key_patterns.json").read_bytes()
    assert main(["analyze", str(tmp_path), "value_rank", "--patterns", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["answers"]) == ["key_patterns", "key_removals", "value_rank", "layer_activity"]
    assert (tmp_path / "analyses" / "key_patterns.json").read_bytes() != before
    assert verify(tmp_path) == []


@pytest.mark.parametrize("name", ["figure4", "Figure 4", "figure-4", "fig4", "Fig. 4"])
def test_a_figure_of_the_paper_is_a_question(name: str, tmp_path: Path, capsys: Capture) -> None:
    atlas = whole(tmp_path)
    assert main(["analyze", str(atlas.path), name]) == 0
    assert capsys.readouterr().out.startswith("value_agreement (Figure 4)\n")


def test_figures_are_numbered_as_the_questions_say() -> None:
    """An alias of every figure that a question names, but for the paper's tables."""
    for question in QUESTIONS:
        figure = load_question(question).paper.figure
        number = figure.split(",")[0].removeprefix("Figure ")
        for written in (figure, figure.split(",")[0], f"Figure {number}", f"fig{number}", f"fig. {number.lower()}"):
            assert question_named(written) == question
    for none in ("4", "fig", "fig1", "fig44", "figure4s"):
        with pytest.raises(OptionError, match="is not a question"):
            question_named(none)


def test_of_a_read_only_atlas_stored_answers_are_shown_and_the_rest_fails_at_once(
    small_disk: Path, capsys: Capture
) -> None:
    atlas = small_disk / "atlas"
    whole(atlas)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = sorted(atlas.rglob("*"))
    for command in (["analyze"], ["analyze", "value_rank"], ["report"], ["report", "--browse"]):
        assert main([command[0], str(atlas), *command[1:]]) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), err  # no progress: nothing was begun
        assert "cannot be written" in err
        assert "--out" in err
    assert sorted(atlas.rglob("*")) == before

    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert main(["analyze", str(atlas)]) == 0
    shown = capsys.readouterr().out
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert main(["analyze", str(atlas)]) == 0
    assert capsys.readouterr().out == shown.replace("questions, written to", "questions, as stored in")
    assert main(["analyze", str(atlas), "figure9", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["answers"]) == ["refinement_match"]
    assert main(["analyze", str(atlas), "--patterns"]) == 2
    assert "no answer to key_patterns can be stored" in capsys.readouterr().err


def test_of_a_read_only_atlas_a_question_without_its_table_says_so(small_disk: Path, capsys: Capture) -> None:
    atlas = small_disk / "atlas"
    build_answers(atlas, prefixes=None, predictions={}, patterns=[])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert main(["analyze", str(atlas), "figure9"]) == 2
    assert "has no table" in capsys.readouterr().err
