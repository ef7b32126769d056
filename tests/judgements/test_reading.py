"""Judgements in a database written by hand: which count, and what is refused."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.annotate.judgements import read_judgements, reading
from mnemoscope.errors import AtlasBusy, AtlasDamaged
from support.handwritten_judgements import SCHEMA

INSERT = (
    "INSERT INTO judgements (author, made_at, layer, memory, control, pattern, kind, description, triggers)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
ROWS: list[tuple[Any, ...]] = [
    ("Ada", "2026-01-02T10:00:00+00:00", 1, 7, 0, 0, "shallow", "ends with part of", "[0, 1, 4]"),
    ("Ada", "2026-01-02T10:05:00+00:00", 1, 7, 0, 1, "semantic", "hospitals", "[2, 3, 5]"),
    ("Ben", "2026-01-02 09:00:00.250000", 1, 7, 0, 0, "both", "of", "[0, 1, 2]"),
    # Ada thinks again about pattern 0; the later time counts although the row of 9:59 is written last.
    ("Ada", "2026-01-02T12:00:00+02:00", 1, 7, 0, 1, "none", "", "[]"),
    ("Ada", "2026-01-02T11:00:00Z", 1, 7, 0, 0, "both", "part of something", "[0, 1, 4, 6]"),
    ("Ada", "2026-01-02T09:59:00Z", 1, 7, 0, 0, "shallow", "too late in the file", "[0, 1, 2]"),
    ("Ada", "2026-01-02T10:00:00Z", 0, 3, 1, 0, "none", "", "[]"),
]


def database(folder: Path, rows: list[tuple[Any, ...]] = ROWS, *, script: str = SCHEMA) -> Path:
    path = folder / "annotations.sqlite"
    with closing(sqlite3.connect(path)) as opened:
        opened.executescript(script)
        if rows:
            opened.executemany(INSERT, rows)
        opened.commit()
    return folder


def test_the_latest_judgement_of_an_author_on_a_pattern_counts(tmp_path: Path) -> None:
    found = read_judgements(database(tmp_path))
    columns = ("layer", "memory", "control", "author", "pattern", "kind", "description", "triggers")
    assert found.select(*columns).rows() == [
        (0, 3, True, "Ada", 0, "none", "", []),
        (1, 7, False, "Ada", 0, "both", "part of something", [0, 1, 4, 6]),
        # 12:00 at two hours east of Greenwich is 10:00, before 10:05.
        (1, 7, False, "Ada", 1, "semantic", "hospitals", [2, 3, 5]),
        (1, 7, False, "Ben", 0, "both", "of", [0, 1, 2]),
    ]
    assert found["made_at"].to_list()[-1] == datetime(2026, 1, 2, 9, 0, 0, 250_000, tzinfo=UTC)


def test_of_two_at_the_same_time_the_later_row_counts(tmp_path: Path) -> None:
    first = ("Ada", "2026-01-02T10:00:00Z", 0, 0, 0, 0, "shallow", "first", "[0, 1, 2]")
    found = read_judgements(database(tmp_path, [first, (*first[:7], "second", "[0, 1, 3]")]))
    assert found["description"].to_list() == ["second"]


def test_a_control_is_not_the_memory_of_its_number(tmp_path: Path) -> None:
    memory = ("Ada", "2026-01-02T10:00:00Z", 0, 5, 0, 0, "shallow", "", "[0, 1, 2]")
    control = (*memory[:4], 1, *memory[5:])
    assert read_judgements(database(tmp_path, [memory, control]))["control"].to_list() == [False, True]


def test_no_file_and_no_judgement(tmp_path: Path) -> None:
    assert read_judgements(tmp_path) is None
    found = read_judgements(database(tmp_path, []))
    assert found.is_empty()
    expected = [
        "author",
        "made_at",
        "layer",
        "memory",
        "control",
        "pattern",
        "kind",
        "description",
        "triggers",
        "sampled",
        "model",
    ]
    assert found.columns == expected


def test_unknown_tables_and_columns_are_passed_over(tmp_path: Path) -> None:
    database(tmp_path)
    with closing(sqlite3.connect(tmp_path / "annotations.sqlite")) as opened:
        opened.executescript("ALTER TABLE judgements ADD COLUMN mood TEXT; CREATE TABLE campaigns (name TEXT);")
    assert read_judgements(tmp_path).height == 4


def refused(folder: Path, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        read_judgements(folder)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_database_of_annotations(tmp_path: Path) -> None:
    path = tmp_path / "annotations.sqlite"
    path.write_bytes(b"This is a letter, not a database.\n" * 100)
    refused(tmp_path, AtlasDamaged, "cannot be read .file is not a database.")
    path.write_bytes(b"")
    refused(tmp_path, AtlasDamaged, "is not a database of annotations")
    path.unlink()
    path.mkdir()
    refused(tmp_path, AtlasDamaged, "is not a file but a folder")
    path.rmdir()
    database(tmp_path, [], script="CREATE TABLE judgements (id INTEGER);")
    refused(tmp_path, AtlasDamaged, "is not a database of annotations")


def test_a_file_cut_in_half(tmp_path: Path) -> None:
    path = database(tmp_path, ROWS * 200) / "annotations.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(tmp_path, AtlasDamaged, "cannot be read")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("UPDATE annotations_version SET version = 2;", "has version 2, expected 1"),
        ("UPDATE annotations_version SET version = 0;", "has version 0, expected 1"),
        ("DELETE FROM annotations_version;", "has version none, expected 1"),
        ("ALTER TABLE judgements DROP COLUMN kind;", "no such column: judgements.kind"),
        ("INSERT INTO annotations_version VALUES (1);", "has version 1 and 1, expected 1"),
        ("UPDATE annotations_version SET version = '1.5x';", "has version 1.5x, expected 1"),
        ("DROP TABLE judgements;", "is not a database of annotations"),
        ("DROP TABLE annotations_version;", "is not a database of annotations"),
    ],
)
def test_other_versions(tmp_path: Path, version: str, said: str) -> None:
    refused(database(tmp_path, [], script=SCHEMA + version), AtlasDamaged, said)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (1, "yesterday", "judgement 1: .*yesterday"),
        (2, -1, "judgement 1: layer is -1"),
        (3, "seven", "judgement 1: memory is 'seven'"),
        (4, 2, "control is 2"),
        (6, "deep", "kind is 'deep', not one of shallow, semantic, both, none"),
        (8, "0, 1", "judgement 1: "),
        *((8, text, "not a list of ranks") for text in ("[0, 1.5]", '{"0": 1}', "[true]", "[-1]", "[32768]")),
        (2, 2**15, "layer is 32768"),
        (3, 2**31, "memory is 2147483648"),
        (5, -1, "pattern is -1"),
        (5, 2**15, "pattern is 32768"),
        (4, -1, "control is -1"),
        (7, b"\xff", "author or description is not text"),
        (0, b"\xff", "author or description is not text"),
        (1, "0001-01-01T00:00:00+14:00", "judgement 1: date value out of range"),
        (1, "9999-12-31T23:59:59-01:00", "judgement 1: date value out of range"),
    ],
)
def test_judgements_that_cannot_be(tmp_path: Path, column: int, value: object, said: str) -> None:
    row = [*ROWS[0]]
    row[column] = value
    refused(database(tmp_path, [tuple(row)]), AtlasDamaged, said)


def test_the_greatest_numbers_and_a_time_without_its_zone(tmp_path: Path) -> None:
    row = ("Ada", "2026-01-02T10:00:00", 2**15 - 1, 2**31 - 1, 1, 2**15 - 1, "both", "", "[0, 32767]")
    found = read_judgements(database(tmp_path, [row]))
    time = datetime(2026, 1, 2, 10, tzinfo=UTC)
    assert found.rows() == [("Ada", time, 2**15 - 1, 2**31 - 1, True, 2**15 - 1, "both", "", [0, 32767], True, False)]


def test_a_log_that_waits_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the log only is seen although the folder is said to be read-only: the log must not be ignored."""
    path = database(tmp_path, []) / "annotations.sqlite"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute(INSERT, ROWS[0])
        opened.commit()
        assert (tmp_path / "annotations.sqlite-wal").stat().st_size > 0
        found = read_judgements(tmp_path)
    assert found.height == 1


def test_a_database_that_is_being_written_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(tmp_path) / "annotations.sqlite"
    monkeypatch.setattr(reading, "WAIT_SECONDS", 0.05)  # five seconds are too long for a test
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        refused(tmp_path, AtlasBusy, "is being written by another process")


def test_a_path_that_is_no_uri(tmp_path: Path) -> None:
    folder = tmp_path / "100 % ? #1"
    folder.mkdir()
    assert read_judgements(database(folder)) is not None


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite writes beside a database with a log even to read it, and cannot on a read-only disk."""
    path = database(tmp_path) / "annotations.sqlite"
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
    seen: list[list[str]] = []

    def question(opened: sqlite3.Connection) -> list[tuple[Any, ...]]:
        seen.append(sorted(entry.name for entry in tmp_path.iterdir()))
        return opened.execute("SELECT count(*) FROM judgements").fetchall()

    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert (reading.query(path, question), seen) == ([(len(ROWS),)], [["annotations.sqlite"]])
