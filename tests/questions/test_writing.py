"""Answers on disk: their form, their bytes, what covers them, and what they leave alone."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import mnemoscope as ms
from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.schema import ANSWER_COLUMNS
from mnemoscope.errors import AtlasBusy, AtlasUnfinished
from mnemoscope.questions import QUESTIONS, answer, load_question, write, write_all
from mnemoscope.questions.answers import with_patterns
from support.handbuilt_answers import RULERS, build_answers, numbers
from support.handbuilt_atlas import PROVENANCE

PREFIXES = [(document, 1, 6, 7) for document in range(4)]
PREDICTIONS = {
    (prefix, layer): {"residual_top": 7 - prefix, "ffn_top": 5, "output_top": 7 if prefix else 9}
    for prefix in range(4)
    for layer in range(2)
}


def whole(directory: Path) -> Atlas:
    value = (6, 6, 0, 0.5, 1.0, -1.0)
    removals = [(0, 0, rank, removed, 2.0, 1.0) for rank in (0, 1) for removed in ("first", "last", "random")]
    return build_answers(
        directory,
        triggers={0: [(0, 6), (0, 6)], 1: []},
        values={0: [value] * 4, 1: [value] * 4},
        next_counts={6: 4},
        removals=removals,
        prefixes=PREFIXES,
        predictions=PREDICTIONS,
        patterns=[(0, 0, "shallow", [0])],
        roles={0: [(0, 1)] * 4, 1: [(1, 0)] * 4},
        width=[0, 1, 2],
        lenses=RULERS,
        memorised=[(False, 32, [0])],
        importance={layer: [(1, 2, 3, 4)] * 4 for layer in (0, 1)},
    )


def test_every_question_is_written_and_covered(tmp_path: Path) -> None:
    atlas = whole(tmp_path)
    written = write_all(atlas)
    assert (tuple(written.documents), written.unanswered) == (QUESTIONS, {})
    names = {f"{question}.{kind}" for question in QUESTIONS for kind in ("json", "parquet")}
    assert {path.name for path in (tmp_path / "analyses").iterdir()} == names | {
        "refinement_events.cases.parquet",
        "manifest.json",
    }
    assert verify(tmp_path) == []
    (tmp_path / "analyses" / "value_rank.json").write_text("{}")
    assert verify(tmp_path) == ["analyses/value_rank.json: the content is not what was written (its sha256 differs)"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Atlas, dict[str, Any]]:
    atlas = whole(tmp_path_factory.mktemp("written"))
    return atlas, dict(write_all(atlas).documents)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_form_of_the_files(question: str, written: tuple[Atlas, dict[str, Any]]) -> None:
    atlas, documents = written
    said = json.loads((atlas.path / "analyses" / f"{question}.json").read_text())
    assert (said, said["question"]) == (json.loads(json.dumps(documents[question])), question)
    paper = said["paper"]
    assert paper["question"] == load_question(question).paper.question
    assert set(paper) == {"figure", "section", "question", "claims"}
    assert all(set(claim) == {"text", "paper", "name", "form"} for claim in paper["claims"])
    assert set(said["projections"].items()) <= {("values", "gain"), ("votes", "gain"), ("streams", "lens")}
    assert all(list(row) == sorted(["layer", "name", "value", "count", "low", "high"]) for row in said["layers"])
    assert all(list(row) == sorted(["name", "value", "count", "low", "high"]) for row in said["totals"])
    table = pq.read_table(atlas.path / "analyses" / f"{question}.parquet")
    assert table.schema.names[: len(ANSWER_COLUMNS)] == ANSWER_COLUMNS.names
    assert [table.schema.field(field.name).type for field in ANSWER_COLUMNS] == [field.type for field in ANSWER_COLUMNS]
    assert table.schema.metadata[b"mnemoscope.table"] == question.encode()
    assert table.schema.metadata[b"mnemoscope.plan"] == PROVENANCE.plan.encode()
    rows = answer(atlas, question)
    assert pl.from_arrow(table.replace_schema_metadata(None)).equals(rows)  # type: ignore[union-attr,arg-type]
    assert rows.height == len(said["layers"]) + len(said["totals"])
    assert rows.select("layer", "name").is_duplicated().sum() == 0
    places = rows["layer"].fill_null(99).to_list()
    assert places.index(99) == len(said["layers"]) if 99 in places else True  # totals come last
    claims = load_question(question).paper.claims
    required = {claim.name for claim in claims if not claim.optional}
    assert required <= {row["name"] for row in said["totals"]}
    assert {claim.form for claim in claims} <= {"share", "number", "count"}


def test_what_is_not_defined_is_null(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []})
    written = write_all(atlas).documents
    for question, document in written.items():
        for row in [*document["layers"], *document["totals"]]:
            if row["value"] is None:
                assert (row["count"], row["low"], row["high"]) == (0, None, None), (question, row)
    table = pl.read_parquet(tmp_path / "analyses" / "refinement_match.parquet")
    assert (table["value"].to_list(), table["count"].to_list()) == ([None] * 10, [0] * 10)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "analyses").iterdir())}


@pytest.mark.full
def test_bytes_do_not_depend_on_threads(tmp_path: Path) -> None:
    """The answers of another process with another number of threads are the same to the bit."""
    atlas = whole(tmp_path / "a")
    write_all(atlas)
    whole(tmp_path / "b")
    script = (
        "import os, sys\nos.environ.update(POLARS_MAX_THREADS='3', OMP_NUM_THREADS='3', OPENBLAS_NUM_THREADS='3')\n"
        "from mnemoscope.questions import write_all\nfrom mnemoscope.atlas import open_atlas\n"
        "write_all(open_atlas(sys.argv[1]))\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script, str(tmp_path / "b")], check=True)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    (tmp_path / "a" / "analyses" / "value_rank.json").write_text("old")
    write(atlas, ["value_rank"])
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_what_cannot_be_answered_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []}, removals=None, prefixes=None)
    written = write_all(atlas)
    assert list(written.documents) == ["key_patterns", "value_agreement", "value_rank", "value_confidence"]
    assert list(written.unanswered) == [question for question in QUESTIONS if question not in written.documents]
    assert "has no table removals" in written.unanswered["key_removals"]
    assert verify(tmp_path) == []


def test_named_questions_are_all_answered_or_nothing_is_written(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []}, removals=None)
    with pytest.raises(AtlasUnfinished):
        write(atlas, ["value_rank", "key_removals"])
    assert not (tmp_path / "analyses" / "value_rank.json").exists()


def test_an_atlas_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    atlas = whole(tmp_path)
    with lock_folder(tmp_path), pytest.raises(AtlasBusy):
        write(atlas, ["value_rank"])


@pytest.mark.parametrize("made", ["answers", "patterns"])
def test_what_an_atlas_says_is_not_written_beside_another(tmp_path: Path, made: str) -> None:
    """`mine --force` that ends while the old atlas is being analysed."""
    old = whole(tmp_path)
    path = tmp_path / "manifest.json"
    data = path.read_bytes().replace(b'"schema": ', b'"schema":  ')
    path.write_bytes(data)
    (tmp_path / "manifest.sha256").write_text(hashlib.sha256(data).hexdigest() + "\n")
    before = files_of(tmp_path)
    make = {
        "answers": lambda: write(old, ["value_rank"]),
        "patterns": lambda: with_patterns(old, ["key_patterns"], anew=True),
    }[made]
    with pytest.raises(AtlasBusy, match="was mined again while it was being read"):
        make()
    assert files_of(tmp_path) == before


def vouched(directory: Path) -> bool:
    return "patterns.parquet" in open_atlas(directory).made_later("analyses")


def test_patterns_that_nothing_vouches_for_are_made_again(tmp_path: Path) -> None:
    """A run killed between the table and the manifest that covers it leaves such a table."""
    atlas = whole(tmp_path)
    (tmp_path / "analyses" / "manifest.json").unlink()
    assert "patterns.parquet: a table that no manifest lists" in verify(tmp_path)
    write_all(atlas)
    assert vouched(tmp_path)
    assert verify(tmp_path) == []


def test_a_changed_table_of_patterns_is_made_again(tmp_path: Path) -> None:
    atlas = whole(tmp_path)
    write_all(atlas)
    (tmp_path / "patterns.parquet").write_bytes(b"no table")
    assert verify(tmp_path) != []
    write(with_patterns(atlas, ["key_patterns"]), ["key_patterns"])
    assert verify(tmp_path) == []


def test_patterns_are_not_made_while_another_process_writes(tmp_path: Path) -> None:
    atlas = whole(tmp_path)
    (tmp_path / "patterns.parquet").unlink()
    with lock_folder(tmp_path), pytest.raises(AtlasBusy, match="is being written by another process"):
        with_patterns(atlas, ["key_patterns"])
    assert not (tmp_path / "patterns.parquet").exists()


def test_the_public_name_takes_an_atlas_or_a_path_and_writes_nothing(tmp_path: Path) -> None:
    atlas = whole(tmp_path)
    before = files_of(tmp_path)
    found = ms.answer(atlas, "value_agreement")
    assert found.equals(ms.answer(tmp_path, "value_agreement"))
    assert found.equals(ms.answer(str(tmp_path), "value_agreement"))
    assert (numbers(found, "agreement")[None], files_of(tmp_path)) == (1.0, before)
