"""Answers read from an atlas: which are believed, which are made again, and what is said where there is none."""

import json
import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.annotate.judgements.reading import ANNOTATIONS
from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.schema import BEYOND, THE_PAPERS
from mnemoscope.errors import AtlasUnfinished, StoreFailed
from mnemoscope.questions import QUESTIONS, write, write_all
from mnemoscope.questions.answers import (
    LoadedAnswers,
    all_are_current,
    answers_with,
    lacking_table,
    load_answers,
    outdated_by_patterns,
    stored_answers,
    with_patterns,
)
from support.handbuilt_answers import RULERS, build_answers
from support.handwritten_judgements import SCHEMA

OPTIONAL: dict[str, Any] = {
    "roles": {0: [(0, 1)] * 4, 1: [(1, 0)] * 4},
    "width": [0, 1, 2],
    "lenses": RULERS,
    "memorised": [],
    "importance": {layer: [(1, 2, 3, 4)] * 4 for layer in (0, 1)},
}
CASES = "refinement_events"
SEEN = tuple[str, float, float | None, str]


def built(directory: Path, **changes: Any) -> Atlas:
    """Two layers, two prefixes; in the last layer one of them is a composition. No optional table if not asked for."""
    value = (6, 6, 0, 0.5, 1.0, -1.0)
    tops = {"residual_top": 7, "ffn_top": 8, "output_top": 7}
    predictions = {(prefix, layer): {**tops, "output_top": 7 + 2 * prefix} for prefix in (0, 1) for layer in (0, 1)}
    whole: dict[str, Any] = {
        "triggers": {0: [(0, 6)], 1: [(0, 6)]},
        "values": {0: [value] * 4, 1: [value] * 4},
        "next_counts": {6: 4},
        "removals": [(0, 0, 0, removed, 2.0, 1.0) for removed in ("first", "last", "random")],
        "prefixes": [(0, 1, 6, 7), (1, 1, 6, 9)],
        "predictions": predictions,
        "attention": False,
        "patterns": [(0, 0, "shallow", [0])],
    }
    return build_answers(directory, **(whole | changes))


def files_of(atlas: Atlas) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (atlas.path / "analyses").iterdir()}


def values_of(loaded: LoadedAnswers) -> dict[str, int]:
    """How many numbers each answer has."""
    return {question: len(answer.names()) for question, answer in loaded.answers.items()}


def test_what_is_missing_is_made_once_and_what_cannot_be_says_why(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    seen: list[SEEN] = []
    first = load_answers(atlas, progress=lambda *said: seen.append(said))
    assert (tuple(first.answers), first.made) == (QUESTIONS, THE_PAPERS)
    assert all(first.answers[question].missing == "" for question in THE_PAPERS if question != "key_removals")
    for question in BEYOND:
        verb = "lens" if question == "lenses" else "extend"
        assert f"make it with `mnemoscope {verb}" in first.answers[question].missing
        assert first.answers[question].table.is_empty()
    assert first.answers["value_rank"].interval == "over memories (Wilson)"
    assert (first.answers["value_rank"].layers, first.answers["value_rank"].depth) == ((0, 1), 2)
    assert first.cases["prefix"].to_list() == [1]
    # Progress is told of those that are made.
    assert [said[:3] for said in seen if said[0] == "questions"] == [("questions", n, 10) for n in range(10)]
    assert verify(tmp_path) == []
    before = files_of(atlas)
    again = load_answers(atlas)
    assert (again.made, values_of(again)) == ((), values_of(first))
    assert again.answers["lenses"].missing == first.answers["lenses"].missing
    assert again.cases.equals(first.cases)
    assert files_of(atlas) == before


def test_optional_questions_are_answered_where_their_tables_are(tmp_path: Path) -> None:
    atlas = built(tmp_path, attention=True, **OPTIONAL)
    assert not any(lacking_table(atlas, question) for question in QUESTIONS)
    found = load_answers(atlas)
    assert found.made == QUESTIONS
    assert [question for question, answer in found.answers.items() if answer.missing] == ["memorised"]
    assert "no document has 64 tokens" in found.answers["memorised"].missing


@pytest.mark.parametrize("table", ["width", "attention", "roles", "lenses", "memorised", "importance"])
def test_an_optional_question_lacks_its_own_table_alone(table: str, tmp_path: Path) -> None:
    given = {"attention": True, **OPTIONAL}
    atlas = built(tmp_path, **{**given, table: {"attention": False, "lenses": ()}.get(table)})
    questions = {"attention": ["attention_share"], "roles": ["key_agreement", "input_output"]}.get(table, [table])
    assert [one for one in QUESTIONS if lacking_table(atlas, one)] == questions


def test_an_answer_that_was_changed_is_made_again(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    load_answers(atlas)
    right = files_of(atlas)
    assert all_are_current(atlas)
    for name in ("value_rank.json", "value_rank.parquet", "refinement_events.cases.parquet"):
        (tmp_path / "analyses" / name).write_bytes(right[name] + b" ")
        assert not all_are_current(atlas)
        assert (load_answers(atlas).made, files_of(atlas)) == ((name.split(".")[0],), right)
        (tmp_path / "analyses" / name).unlink()
        assert (load_answers(atlas).made, files_of(atlas)) == ((name.split(".")[0],), right)


def test_an_answer_that_no_manifest_lists_is_not_believed(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    write(atlas, ["value_rank", "value_confidence"])
    path = tmp_path / "analyses" / "manifest.json"
    listed = json.loads(path.read_text())
    del listed["files"]["analyses/value_rank.json"]
    path.write_text(json.dumps(listed))
    stored = stored_answers(atlas)
    assert [question for question, answer in stored.items() if not answer.missing] == ["value_confidence"]


def test_stored_answers_are_read_and_none_is_made(tmp_path: Path) -> None:
    atlas = built(tmp_path / "an atlas")
    write(atlas, ["value_rank", "refinement_match"])
    before = files_of(atlas)
    stored = stored_answers(atlas)
    assert tuple(stored) == QUESTIONS
    assert [question for question, answer in stored.items() if not answer.missing] == ["value_rank", "refinement_match"]
    assert stored["value_rank"].names()
    assert stored["refinement_match"].interval == "over documents (bootstrap, 2000 draws, seed 7)"
    where = shlex.quote(str(atlas.path))
    assert stored["value_agreement"].missing == f"make it with `mnemoscope analyze {where}`"
    # Which would not answer this one.
    assert stored["width"].missing == f"make its table width with `mnemoscope extend {where} --model gpt2 width`"
    assert files_of(atlas) == before


def test_one_answer_is_made_beside_the_stored_ones_and_not_kept(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    write(atlas, ["value_rank"])
    before = files_of(atlas)
    found = answers_with(atlas, "refinement_match")
    assert tuple(found) == QUESTIONS
    said = {question: answer.missing for question, answer in found.items()}
    assert said == {one: "" if one in ("value_rank", "refinement_match") else "not asked for" for one in QUESTIONS}
    assert found["refinement_match"].names()
    assert files_of(atlas) == before
    assert answers_with(atlas, "value_rank")["refinement_match"].missing == "not asked for"
    with pytest.raises(AtlasUnfinished, match="has no table width"):
        answers_with(atlas, "width")


def test_outdated_by_patterns_are_those_that_lie_there(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    assert outdated_by_patterns(atlas) == ()
    write(atlas, ["layer_activity", "key_patterns", "value_rank"])
    assert outdated_by_patterns(atlas) == ("key_patterns", "layer_activity")


def test_patterns_are_made_for_questions_that_need_them_or_anew(tmp_path: Path) -> None:
    atlas = built(tmp_path, patterns=None)
    path = tmp_path / "patterns.parquet"
    assert with_patterns(atlas, ["value_rank", "width"]) is atlas
    assert not path.exists()
    made = with_patterns(atlas, ["value_rank", "key_removals"])
    assert made.has("patterns")
    assert path.is_file()
    assert with_patterns(made, QUESTIONS) is made
    seen: list[SEEN] = []
    with_patterns(made, [], anew=True, progress=lambda *said: seen.append(said))
    assert seen[-1][:3] == ("patterns", 8, 8)


def test_a_part_has_no_answers(tmp_path: Path) -> None:
    atlas = built(tmp_path, part={"index": 1, "of": 2})
    for ask in (lambda: with_patterns(atlas, []), lambda: load_answers(atlas), lambda: write_all(atlas)):
        with pytest.raises(AtlasUnfinished, match="is part 1 of 2"):
            ask()


@contextmanager
def folder_that_takes_nothing(directory: Path) -> Iterator[None]:
    """Nothing can be written into the folder, by anybody: where a folder must be, there is a file."""
    kept = directory.with_name("kept")
    kept.mkdir(exist_ok=True)
    for path in sorted(directory.iterdir()):
        path.rename(kept / path.name)
    directory.rmdir()
    directory.write_bytes(b"")
    yield
    directory.unlink()
    kept.rename(directory)


def test_answers_are_made_where_they_cannot_be_kept_only_if_that_is_wanted(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    with folder_that_takes_nothing(tmp_path / "analyses"):
        with pytest.raises(StoreFailed):
            load_answers(atlas)
        found = load_answers(atlas, keep=False)
        assert found.made == THE_PAPERS
        assert found.answers["value_rank"].names()
    assert load_answers(atlas).made == THE_PAPERS


@pytest.mark.parametrize("name", ["analyses/value_rank.json", "patterns.parquet"])
def test_a_place_where_one_file_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    """Answers before it are kept; what else there is to make does not hide it."""
    atlas = built(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name / "taken").mkdir(parents=True)
    with pytest.raises(StoreFailed, match=name):
        load_answers(atlas)
    stored = [question for question, answer in stored_answers(atlas).items() if not answer.missing]
    assert stored == ([] if name == "patterns.parquet" else ["key_patterns", "key_removals", "value_agreement"])


VERDICTS = "CREATE TABLE items (id, memory); CREATE TABLE verdicts (id, author, made_at, item, verdict);"


def test_an_answer_that_counts_other_judgements_is_made_again(tmp_path: Path) -> None:
    atlas = built(tmp_path)
    load_answers(atlas)
    first = files_of(atlas)
    assert "judgements" not in json.loads(first["refinement_events.json"])
    with closing(sqlite3.connect(tmp_path / ANNOTATIONS)) as database:
        database.executescript(SCHEMA + VERDICTS)
        assert all_are_current(atlas), "nobody has said anything yet"
        database.executescript(
            "INSERT INTO items VALUES (1, 1);"
            "INSERT INTO verdicts VALUES (1, 'Ada', '1', 1, 'distant'), (2, 'Bob', '2', 1, 'distant')"
        )
        assert not all_are_current(atlas)
        # What is stored stays as it was; what is asked for is made with what people say now.
        assert stored_answers(atlas)[CASES].total("composition_distant") is None
        assert answers_with(atlas, "value_rank")[CASES].total("composition_distant") is None
        asked = answers_with(atlas, CASES)[CASES].total("composition_distant")
        assert (asked.value, load_answers(atlas).made) == (1.0, (CASES,))
        assert all_are_current(atlas)
        said = json.loads(files_of(atlas)["refinement_events.json"])
        assert len(said["judgements"]) == 64
        database.executescript("INSERT INTO verdicts VALUES (3, 'Ada', '3', 1, 'related')")
        assert not all_are_current(atlas)
        assert load_answers(atlas).made == (CASES,)
        assert json.loads(files_of(atlas)["refinement_events.json"])["judgements"] != said["judgements"]
    os.unlink(tmp_path / ANNOTATIONS)
    assert (load_answers(open_atlas(tmp_path)).made, files_of(atlas)) == ((CASES,), first)
