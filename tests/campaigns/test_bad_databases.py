"""Databases that cannot be used: one plain line each, and what to do."""

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.annotations import Annotator, Store, open_store
from mnemoscope.atlas import Atlas
from mnemoscope.errors import AnnotationError, OptionError
from support.handwritten_judgements import SCHEMA
from support.judged_atlas import judged_atlas


def refused(atlas: Atlas, at: str | Path | None, said: str) -> None:
    with pytest.raises(AnnotationError, match=said) as caught:
        open_store(atlas, at)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "at", ["postgresql://ada:secret@host/team", "sqlite:///team.sqlite", "sqlite://", "://ada:secret@host"]
)
def test_an_address_is_no_file(shared_atlas: Atlas, at: str) -> None:
    with pytest.raises(OptionError, match="not at an address") as caught:
        open_store(shared_atlas, at)
    assert "secret" not in str(caught.value)


def test_paths_that_are_none(shared_atlas: Atlas, tmp_path: Path) -> None:
    refused(shared_atlas, tmp_path, "is a folder; name a file")
    refused(shared_atlas, tmp_path / "no" / "a.sqlite", "is not a folder, so a.sqlite cannot be made there")
    (tmp_path / "letter").write_bytes(b"Dear reader, this is no database.\n" * 100)
    refused(shared_atlas, tmp_path / "letter", "file is not a database.*; restore it from a copy")


def test_a_database_that_is_refused_is_left_as_it_is(shared_atlas: Atlas, tmp_path: Path) -> None:
    """To the byte: a switch to a log beside the file would be for good."""
    music = edited(tmp_path / "music", "CREATE TABLE songs (name TEXT)")
    (tmp_path / "link").symlink_to(music)
    hand = edited(tmp_path / "hand", SCHEMA)
    before = music.read_bytes(), hand.read_bytes()
    refused(shared_atlas, music, "is not a database of annotations")
    refused(shared_atlas, tmp_path / "link", "is not a database of annotations")
    refused(shared_atlas, hand, "was not made by a campaign")
    assert (music.read_bytes(), hand.read_bytes()) == before
    with closing(sqlite3.connect(music)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    own = tmp_path / "own"
    open_store(shared_atlas, own).close()
    with closing(sqlite3.connect(own)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_atlas_does_not_say_by_a_link_where_judgements_go(tmp_path: Path) -> None:
    atlas = judged_atlas(tmp_path / "atlas", cases=0, patterns=False)
    (tmp_path / "atlas" / "annotations.sqlite").symlink_to(tmp_path / "elsewhere")
    refused(atlas, None, "annotations.sqlite is a link; name the file that it leads to with annotations")
    assert not (tmp_path / "elsewhere").exists()


def edited(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
    return path


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("UPDATE annotations_version SET version = 2", "holds annotations of version 2, this package reads version 1"),
        ("DELETE FROM annotations_version", "holds annotations of version none, this package"),
        ("DROP TABLE annotations_version", "but not their version; restore it"),
        ("DROP TABLE finishes", r"was not made by a campaign \(it lacks finishes\)"),
        ("ALTER TABLE annotations_version DROP COLUMN atlas", r"\(it lacks the atlas's hash\)"),
        (
            "UPDATE annotations_version SET atlas = 'abc'",
            "holds judgements of another atlas .manifest abc, this one is",
        ),
    ],
)
def test_other_versions_and_other_atlases(shared_atlas: Atlas, tmp_path: Path, script: str, said: str) -> None:
    path = tmp_path / "a.sqlite"
    open_store(shared_atlas, path).close()
    refused(shared_atlas, edited(path, script), said)


def test_a_damaged_file(shared_atlas: Atlas, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with open_store(shared_atlas, path) as store:
        store.start_campaign()
        for number in range(200):
            store.invite(f"annotator {number}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(shared_atlas, path, "restore it from a copy")
    pages = bytearray(whole)
    pages[4096 * 3 : 4096 * 12] = b"\xff" * (4096 * 9)
    path.write_bytes(pages)
    refused(shared_atlas, path, "restore it from a copy")


FULL = """
import resource, sys
from pathlib import Path
from mnemoscope.annotations import Annotator, open_store
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import AnnotationError

atlas, place = map(Path, sys.argv[1:])
with open_store(open_atlas(atlas), place) as store:
    ada = Annotator("Ada")
    code = store.places(ada)[0].code
    def save(n):
        store.save(code, ada, kind="both", description="x" * 500, marks=[0, 1, 2], pattern=0, key=f"save-{n:06}")
    for n in range(20):
        save(n)
    # As on a full disk: the system refuses to let any file grow further.
    largest = max(path.stat().st_size for path in place.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    for n in range(20, 2000):
        try:
            save(n)
        except AnnotationError as error:
            print(f"refused {n}", error)
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    save(n)
    print("saved", n)
"""


@pytest.fixture
def file_store(shared_atlas: Atlas, swift: Path) -> Iterator[Store]:
    with open_store(shared_atlas, swift / "annotations.sqlite") as store:
        store.start_campaign(keys_per_layer=1)
        yield store


@pytest.mark.full
def test_a_disk_that_fills_up_mid_save(file_store: Store) -> None:
    """The judgement is refused in one line, none before it is lost, and the same one is stored once there is room."""
    store = file_store
    store.invite("Ada")
    command = [sys.executable, "-c", FULL, str(store.atlas.path), str(store.database.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refusal, saved = done.stdout.splitlines()
    number = int(refusal.split()[1])
    assert "nothing was stored (" in refusal
    assert "make room on the disk, then save again" in refusal
    assert saved == f"saved {number}"
    with store.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM judgements").fetchone()[0] == number + 1
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_database_that_is_full(file_store: Store) -> None:
    """SQLite's own error for it, from a limit on pages."""
    store = file_store
    store.invite("Ada")
    ada, code = Annotator("Ada"), store.places(Annotator("Ada"))[0].code
    with store.database.writing() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def save_many() -> None:
        for _ in range(200):
            store.save(code, ada, kind="both", description="x" * 500, marks=[0, 1, 2], pattern=0)

    with pytest.raises(AnnotationError, match=r"\(database or disk is full\)"):
        save_many()


def test_a_writer_who_never_ends(file_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemoscope.annotate.campaigns import database

    monkeypatch.setattr(database, "WAIT_SECONDS", 0.05)  # half a minute is too long for a test
    path = file_store.database.path
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused(file_store.atlas, path, r"\(database is locked\); another process is writing; try again")


def test_a_database_that_cannot_be_written(file_store: Store) -> None:
    with file_store.database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    with pytest.raises(AnnotationError, match=r"readonly database\)"):
        file_store.invite("Ada")
