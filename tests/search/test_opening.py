"""The index is made once, follows the atlas, and survives damage, kills, full and read-only disks, and company."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.atlas import open_atlas, verify
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.errors import AtlasDamaged, StoreFailed
from mnemoscope.foundation.files import write_json
from mnemoscope.search import build_index, open_index
from search.conftest import build_random_atlas
from support.handbuilt_atlas import PROVENANCE, build_atlas, manifest, trigger_columns, trigger_rows, write_tables


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    return build_atlas(tmp_path / "atlas")


def total(atlas: Path) -> int:
    with open_index(atlas) as index:
        return index.search("capital", fields=["triggers"]).totals["triggers"]


def identity(atlas: Path) -> tuple[int, int]:
    found = (atlas / "search/index.sqlite").stat()
    return found.st_ino, found.st_mtime_ns


def test_it_is_made_once_and_is_no_damage(atlas: Path) -> None:
    before = sorted(atlas.rglob("*"))
    assert total(atlas) == 3
    first = identity(atlas)
    assert total(atlas) == 3
    assert identity(atlas) == first
    assert sorted(set(atlas.rglob("*")) - set(before)) == [atlas / "search", atlas / "search/index.sqlite"]
    assert verify(atlas) == []


def spoil_index(path: Path, how: str) -> None:
    if how == "folder of an old one":
        (path.parent / ".index.sqlite.1.mnemoscope-tmp").write_bytes(b"left by a kill")
        path.unlink()
    elif how in ("empty", "letter", "half"):
        whole = path.read_bytes()
        path.write_bytes({"empty": b"", "letter": b"No database.\n" * 1000, "half": whole[: len(whole) // 2]}[how])
    else:
        with closing(sqlite3.connect(path)) as database:
            database.execute(how)
            database.commit()


CHANGES = (
    *(
        "UPDATE about SET said = '0' WHERE name = 'version'",
        "UPDATE about SET said = 'another' WHERE name = 'manifest'",
    ),
    *("DROP TABLE fires", "UPDATE arrays SET data = zeroblob(length(data))", "DELETE FROM arrays WHERE name = 'left'"),
)


@pytest.mark.parametrize("damage", ["empty", "letter", "half", "folder of an old one", *CHANGES])
def test_a_stale_or_damaged_index_is_made_again(atlas: Path, damage: str) -> None:
    total(atlas)
    path = atlas / "search/index.sqlite"
    spoil_index(path, damage)
    assert total(atlas) == 3
    assert [file.name for file in path.parent.iterdir()] == ["index.sqlite"]


@pytest.mark.parametrize("table", ["arrays", "sentences", "place_text_data"])
def test_damage_found_while_searching_is_mended_once(tmp_path: Path, table: str) -> None:
    atlas = build_random_atlas(tmp_path / "atlas")
    with open_index(atlas) as index:
        expected = index.search("the", fields=["triggers"], limit=100)
    path = atlas / "search/index.sqlite"
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        pages = [n for (n,) in database.execute("SELECT pageno FROM dbstat WHERE name = ?", (table,))]
        size = database.execute("PRAGMA page_size").fetchone()[0]
    assert pages
    for page in pages[-1:]:
        data[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(data)
    with open_index(atlas) as index:
        assert index.search("the", fields=["triggers"], limit=100) == expected
    assert verify(atlas) == []


def test_a_part_has_triggers_to_search(tmp_path: Path) -> None:
    with open_index(build_atlas(tmp_path / "part", part=(1, 2))) as index:
        assert index.search("capital").totals["triggers"] == 3
        assert index.missing_fields == ("values", "bottom", "patterns")
        assert index.promoting(" Paris") == ()


@pytest.mark.parametrize(
    ("memory", "told"), [(-1, "memory holds -1 in 1 of"), (4, "names a memory that layer 1 does not have")]
)
def test_a_trigger_of_a_memory_that_its_layer_does_not_have_is_damage(memory: int, told: str, tmp_path: Path) -> None:
    """It would be counted as one of a neighbouring layer."""
    atlas = tmp_path / "atlas"
    write_tables(atlas)
    columns = trigger_columns(trigger_rows()[1])
    columns["memory"] = [memory, *columns["memory"][1:]]
    write_table(atlas / TABLES["triggers"].path(1), columns, name="triggers", provenance=PROVENANCE)
    write_json(atlas / "run.json", {"host": "nowhere", "seconds": 1.5})
    seal(atlas, manifest())
    with pytest.raises(AtlasDamaged, match=told):
        build_index(open_atlas(atlas))


@pytest.mark.full
def test_threads_build_and_search_at_once(tmp_path: Path) -> None:
    atlas = open_atlas(build_random_atlas(tmp_path / "atlas"))
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: build_index(atlas), range(4)))) == 1
    words = ["the", "of", '"of the"', "par*", "москва", "word1*", "os.path"] * 20
    with open_index(atlas) as index:
        expected = [index.search(word) for word in words]
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(index.search, words)) == expected
            tokens = list(pool.map(lambda token: index.promoting(token), range(40)))
        assert tokens == [index.promoting(token) for token in range(40)]


def test_one_waits_for_another(atlas: Path) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        with lock_folder(atlas / "search"):
            built = pool.submit(build_index, open_atlas(atlas), progress=lambda *report: said.append(report[3]))
            while not said:
                time.sleep(0.01)
            assert not built.done()
        assert built.result(timeout=60).is_file()
    assert said[0] == "another process is building it; waiting"


@pytest.mark.full
def test_a_killed_build_leaves_nothing_that_matters(tmp_path: Path) -> None:
    atlas = build_random_atlas(tmp_path / "atlas")
    script = (
        "import os, signal, sys\nfrom mnemoscope.atlas import open_atlas\nfrom mnemoscope.search import build_index\n"
        "def kill(*_): os.kill(os.getpid(), signal.SIGKILL)\nbuild_index(open_atlas(sys.argv[1]), progress=kill)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(atlas)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path for path in (atlas / "search").iterdir() if "mnemoscope-tmp" in path.name]
    assert verify(atlas) == []
    with open_index(atlas) as index:
        assert index.search("the").total
    assert [file.name for file in (atlas / "search").iterdir()] == ["index.sqlite"]


@pytest.fixture
def disk(small_disk: Path) -> Path:
    build_atlas(small_disk / "atlas")
    return small_disk


def test_a_full_disk(disk: Path) -> None:
    free = os.statvfs(disk)
    (disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 60_000))
    with pytest.raises(StoreFailed, match=r"full|No space left") as caught:
        open_index(disk / "atlas")
    assert "\n" not in str(caught.value)
    assert not (disk / "atlas/search").exists()
    (disk / "ballast").unlink()
    assert total(disk / "atlas") == 3


def test_a_read_only_disk(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    said: list[str] = []
    with open_index(disk / "atlas", progress=lambda *report: said.append(report[3])) as index:
        folder = index.path.parent
        assert disk not in folder.parents
        assert index.search("capital", fields=["triggers"]).totals == {"triggers": 3}
    assert not folder.exists()
    assert said[0] == f"{disk / 'atlas'} cannot be written; the index is made for this time only"


def test_a_closed_index_says_so(atlas: Path) -> None:
    index = open_index(atlas)
    index.close()
    with pytest.raises(ValueError, match="the index is closed"):
        index.search("capital")
