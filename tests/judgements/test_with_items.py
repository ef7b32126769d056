"""Judgements and verdicts as campaigns store them: on items, finished or not, about one atlas."""

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from mnemoscope.annotate.judgements import read_judgements, read_verdicts, tables
from mnemoscope.annotate.judgements.reading import final_verdicts, majority_calls
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AnnotationError, AtlasDamaged
from mnemoscope.foundation.intervals import share

KINDS = ("key", "control", "chosen", "case")
"""Items 1 to 4, about memories 10, 20, 30 and 40 of layer 1."""


def atlas(folder: Path, said: Sequence[str]) -> Path:
    """A folder with a manifest and a database about it, with two authors, four items and what is said."""
    (folder / MANIFEST).write_text("a manifest", encoding="utf-8")
    owner = hashlib.sha256(b"a manifest").hexdigest()
    with closing(sqlite3.connect(folder / "annotations.sqlite")) as connection:
        tables.create(connection)
        connection.execute(f"INSERT INTO annotations_version VALUES (1, '{owner}')")
        for number, kind in enumerate(KINDS, 1):
            values = f"({number}, 'code{number}', '{kind}', 1, {10 * number}, '')"
            connection.execute(f"INSERT INTO items VALUES {values}")
        for name in ("Ada", "Ben"):
            columns = "name, folded, role, token_hash, made_at"
            values = f"'{name}', '{name}', 'annotator', '{name}', 'now'"
            connection.execute(f"INSERT INTO annotators ({columns}) VALUES ({values})")
        for statement in said:
            connection.execute(statement)
        connection.commit()
    return folder


def judge(item: int, key: str, *, author: str = "Ada") -> str:
    """A judgement of the item, whose description is its key."""
    return (
        "INSERT INTO judgements"
        " (author, made_at, layer, memory, control, pattern, kind, description, triggers, item, key)"
        f" VALUES ('{author}', '2026-01-02T03:00:00+00:00', 1, {10 * item}, {int(item == 2)}, 0, 'both', '{key}',"
        f" '[0, 1, 2]', {item}, '{key}')"
    )


def finish(item: int | None, minute: int, *, finished: int = 1, author: str = "Ada") -> str:
    where, key = "NULL" if item is None else item, f"{author}-{item}-{minute}-{finished}"
    return (
        "INSERT INTO finishes (author, made_at, item, finished, key)"
        f" VALUES ('{author}', '2026-01-02T04:{minute:02}:00+00:00', {where}, {finished}, '{key}')"
    )


def call(verdict: str, minute: int, *, author: str = "Ada", item: int = 4) -> str:
    return (
        "INSERT INTO verdicts (author, made_at, item, verdict, key)"
        f" VALUES ('{author}', '2026-01-02T05:{minute:02}:00+00:00', {item}, '{verdict}', '{verdict}-{item}-{minute}')"
    )


def descriptions(folder: Path) -> list[str]:
    found = read_judgements(folder)
    return sorted(found["description"])


def test_judgements_count_once_their_author_has_finished_the_item(tmp_path: Path) -> None:
    said = [judge(1, "ada1"), judge(2, "ada2"), judge(1, "ben1", author="Ben"), finish(1, 0), finish(None, 0)]
    assert descriptions(atlas(tmp_path, said)) == ["ada1"]


def test_a_memory_that_somebody_chose_counts_at_once_and_is_no_sample(tmp_path: Path) -> None:
    found = read_judgements(atlas(tmp_path, [judge(3, "chosen"), judge(2, "control"), finish(2, 0)]))
    assert found.select("description", "memory", "control", "sampled").rows() == [
        ("control", 20, True, True),
        ("chosen", 30, False, False),
    ]


@pytest.mark.parametrize(
    ("finishes", "counts"),
    [
        ([finish(1, 1, finished=1), finish(1, 2, finished=0)], False),
        ([finish(1, 2, finished=0), finish(1, 1, finished=1)], False),  # the later time, not the later row
        ([finish(1, 1, finished=0), finish(1, 1, finished=1)], True),  # at the same time the later row
        ([finish(1, 1, finished=1), finish(1, 1, finished=0)], False),
    ],
)
def test_the_last_word_on_an_item_decides(tmp_path: Path, finishes: list[str], counts: bool) -> None:
    assert descriptions(atlas(tmp_path, [judge(1, "ada1"), *finishes])) == ["ada1"] * counts


def test_what_is_not_finished_is_not_looked_at(tmp_path: Path) -> None:
    broken = judge(1, "ada1").replace("[0, 1, 2]", "no list")
    assert descriptions(atlas(tmp_path, [broken])) == []


def test_judgements_of_another_atlas_are_refused(tmp_path: Path) -> None:
    folder = atlas(tmp_path, [judge(3, "chosen"), call("related", 1)])
    assert descriptions(folder) == ["chosen"]
    owner, sides = hashlib.sha256(b"a manifest").hexdigest(), set()
    for other in ("another", "manifest 1"):
        (folder / MANIFEST).write_text(other, encoding="utf-8")
        here = hashlib.sha256(other.encode()).hexdigest()
        sides.add(here < owner)
        said = f"another atlas .manifest {owner[:12]}, this one is {here[:12]}.;"
        for read in (read_judgements, read_verdicts):
            with pytest.raises(AnnotationError, match=said):
                read(folder)
    assert len(sides) == 2, "hashes before and after that of its own"


def test_the_last_verdict_of_an_author_counts_unless_it_takes_back(tmp_path: Path) -> None:
    said = [
        call("distant", 2),
        call("related", 1),  # the later time counts, not the later row
        call("related", 3, author="Ben"),
        call("none", 4, author="Ben"),
        call("related", 1, item=1),
        call("distant", 1, item=1),  # at the same time the later row
    ]
    found = read_verdicts(atlas(tmp_path, said))
    assert found.rows() == [(10, "Ada", "distant", False), (40, "Ada", "distant", False)]
    assert found.schema == {"case": pl.Int64, "author": pl.String, "verdict": pl.String, "model": pl.Boolean}


def test_where_nobody_could_judge_there_are_no_verdicts(tmp_path: Path) -> None:
    assert read_verdicts(tmp_path) is None
    assert read_verdicts(atlas(tmp_path, [])).is_empty()


@pytest.mark.parametrize("table", ["verdicts", "items"])
def test_without_either_table_there_are_no_verdicts(tmp_path: Path, table: str) -> None:
    path = atlas(tmp_path, []) / "annotations.sqlite"
    with closing(sqlite3.connect(path)) as opened:
        opened.execute(f"DROP TABLE {table}")
        opened.commit()
    assert read_verdicts(tmp_path).is_empty()


@pytest.mark.parametrize("change", ["verdict = 'near'", "author = x'ff'"])
def test_verdicts_that_cannot_be(tmp_path: Path, change: str) -> None:
    path = atlas(tmp_path, [call("related", 1)]) / "annotations.sqlite"
    with closing(sqlite3.connect(path)) as opened:
        opened.executescript(
            f"PRAGMA ignore_check_constraints = ON; DROP TRIGGER verdicts_no_update;UPDATE verdicts SET {change}"
        )
    with pytest.raises(AtlasDamaged, match="calls composition 40"):
        read_verdicts(tmp_path)


def test_a_composition_whose_number_is_no_number(tmp_path: Path) -> None:
    path = atlas(tmp_path, [call("related", 1)]) / "annotations.sqlite"
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("UPDATE items SET memory = 'forty' WHERE id = 4")
        opened.commit()
    with pytest.raises(AtlasDamaged, match="'Ada' calls composition 'forty' 'related'"):
        read_verdicts(tmp_path)


def test_most_judges_decide_and_as_many_on_either_side_are_split() -> None:
    """Compositions 1 and 2: related; 3: distant; 4 and 5: split."""
    calls = {1: "r", 2: "rrd", 3: "ddr", 4: "rd", 5: "rrdd"}
    rows = [
        (case, f"{number}", {"r": "related", "d": "distant"}[letter], False)
        for case, letters in calls.items()
        for number, letter in enumerate(letters)
    ]
    found = majority_calls(final_verdicts(rows))
    assert found == {"related": share(2, 5), "distant": share(1, 5), "split": share(2, 5)}
