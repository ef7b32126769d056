"""One place of every kind fails once, or is the last before a power cut: runs/faults.sh tries all of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mnemoscope
from faulty_disk import Call, compiler, read
from mnemoscope.atlas.folder import occupancy
from support.handbuilt_atlas import build_atlas
from support.needed import refuse
from support.power_cut import WAYS, Disk, write_tree

pytestmark = pytest.mark.full

TESTS = Path(__file__).parent
RUNS = TESTS.parent / "runs"
TOGETHER = [
    "mine annotate",
    *(pytest.param(verbs, marks=pytest.mark.slow) for verbs in ("report search", "replace analyze", "merge serve")),
]
"""All verbs, two in a process: what they import takes one longer than most of its places."""


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(Path(mnemoscope.__file__).parents[1]), str(TESTS), str(RUNS)])
    return {**os.environ, "PYTHONPATH": paths}


def python(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """A process of its own, in which the library can be preloaded."""
    if compiler() is None:
        refuse("no C compiler on this machine (Debian: apt-get install gcc libc6-dev)")
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)  # the machine may be busy
@pytest.mark.parametrize("verbs", TOGETHER)
def test_one_place_of_every_kind_holds(verbs: str) -> None:
    ran = python(RUNS / "faults.py", *verbs.split(), "--few", "--seed", "5")
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert [*told] == verbs.split()
    for found in told.values():
        for sort, least in (("failures", 5), ("cuts", 2)):
            assert found[f"{sort} held"] == found[f"{sort} tried"] >= least, told


OPENING = """
import os, sqlite3, sys
from pathlib import Path
import faulty_disk
faulty_disk.begin_again_preloaded()
root, diary, place = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
faulty_disk.begin(root, diary, fail_at=None if place < 0 else place, error=28)
"""
CLEARING = """
from mnemoscope.atlas.folder import clear
clear(root / "atlas")
"""
WRITER = """
try:
    (root / "folder").mkdir()
    with (root / "new").open("wb") as file:
        file.write(b"abcdef")
        file.flush()
        os.fsync(file.fileno())
    (root / "new").rename(root / "folder" / "name")
    os.fsync(os.open(root / "folder", os.O_RDONLY))
    database = sqlite3.connect(root / "rows.sqlite")
    database.execute("CREATE TABLE rows (one)")
    database.close()
except (OSError, sqlite3.Error) as error:
    print(error)
"""


def written(folder: Path, place: int = -1) -> tuple[str, list[Call]]:
    """What a program said that wrote a file and a database, and its calls; call number `place` failed."""
    shutil.rmtree(folder / "root", ignore_errors=True)
    (folder / "root").mkdir()
    return recorded(folder, WRITER, place)


def recorded(folder: Path, work: str, place: int = -1) -> tuple[str, list[Call]]:
    """What a program says that works in `root`, and its calls there."""
    root, diary, program = folder / "root", folder / "diary", folder / "writer.py"
    program.write_text(OPENING + work)
    ran = python(program, root, diary, str(place))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip(), read(diary, root)


def test_every_call_is_seen_and_the_one_that_was_chosen_fails(tmp_path: Path) -> None:
    said, calls = written(tmp_path)
    assert said == ""
    assert [(call.kind, call.path) for call in calls[:6]] == [
        ("make folder", "folder"),
        ("create", "new"),
        ("write", "new"),
        ("flush", "new"),
        ("rename", "new"),
        ("flush", "folder"),
    ]
    assert calls[2].data == b"abcdef"
    kinds = {(call.kind, call.path) for call in calls[6:]}
    assert {("write", "rows.sqlite-journal"), ("flush", "rows.sqlite"), ("remove", "rows.sqlite-journal")} <= kinds
    for place in range(len(calls)):
        said, met = written(tmp_path, place)
        assert [call.failed for call in met].index(True) == place
        if place < 6:
            assert "No space left" in said


def test_strace_sees_no_call_that_the_library_does_not(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        refuse("no strace on this machine (Debian: apt-get install strace)")
    calls = written(tmp_path)[1]
    root, trace = tmp_path / "again", tmp_path / "trace"
    root.mkdir()
    names = "write,pwrite64,writev,pwritev,fsync,fdatasync,rename,renameat,renameat2,link,linkat,mkdir,mkdirat"
    strace = ["strace", "-f", "-y", "-o", trace, "-e", f"trace={names},unlink,unlinkat,ftruncate,fallocate"]
    program = [sys.executable, tmp_path / "writer.py", root, tmp_path / "diary", "-1"]
    ran = subprocess.run([*strace, *program], env=environment(), capture_output=True, text=True, check=False)
    if "PTRACE_TRACEME" in ran.stderr or "Operation not permitted" in ran.stderr:
        pytest.skip("processes may not be traced here")
    assert ran.returncode == 0, ran.stderr
    seen = [line for line in trace.read_text().splitlines() if str(root) in line and " = -1 " not in line]
    assert len(seen) == sum(call.kind != "create" for call in calls)


def left(folder: Path, calls: list[Call], way: str) -> dict[str, bytes | None]:
    """What a cut after these calls leaves of an empty folder."""
    folder.mkdir(exist_ok=True)
    disk = Disk(folder)
    for call in calls:
        disk.make(call)
    return disk.left(way)


def test_a_power_cut_takes_what_was_not_flushed(tmp_path: Path) -> None:
    def call(kind: str, path: str, data: bytes = b"", at: int = 0, other: str = "") -> Call:
        return Call(kind, False, {"folder": 1}.get(path, 2), at, path, other, data)

    calls = [call("create", "new"), call("write", "new", b"abcd"), call("write", "new", b"efgh", 4)]
    assert left(tmp_path / "a", calls, "all kept") == {"new": b"abcdefgh"}
    assert left(tmp_path / "a", calls, "all lost") == {}
    assert left(tmp_path / "a", calls, "names kept, content lost") == {"new": b""}
    assert left(tmp_path / "a", calls, "last write torn") == {"new": b"abcdef"}
    assert left(tmp_path / "a", calls, "last write alone") == {"new": b"\0\0\0\0efgh"}
    assert left(tmp_path / "a", calls, "last write's end alone") == {"new": b"\0\0\0\0\0\0gh"}
    calls += [call("flush", "new"), call("rename", "new", other="name")]
    assert left(tmp_path / "a", calls, "all lost") == {}, "its folder was not flushed"
    assert left(tmp_path / "a", calls, "names kept, content lost") == {"name": b"abcdefgh"}
    assert left(tmp_path / "a", calls, "all but the last name") == {"new": b"abcdefgh"}
    calls += [Call("flush", False, 3, 0, ".", "", b"")]
    assert left(tmp_path / "a", calls, "all lost") == {"name": b"abcdefgh"}
    calls += [call("write", "name", b"XY"), call("remove", "name")]
    assert left(tmp_path / "a", calls, "all lost") == {"name": b"abcdefgh"}
    assert left(tmp_path / "a", calls, "content kept, names lost") == {"name": b"XYcdefgh"}
    assert left(tmp_path / "a", calls, "all kept") == {}


def test_a_tree_that_a_cut_left_is_made(tmp_path: Path) -> None:
    write_tree({"folder": None, "folder/name": b"abc"}, tmp_path / "made")
    assert (tmp_path / "made/folder/name").read_bytes() == b"abc"


def test_no_power_cut_makes_a_strangers_folder_of_an_atlas_that_is_cleared(tmp_path: Path) -> None:
    build_atlas(tmp_path / "root" / "atlas")
    disk, calls = Disk(tmp_path / "root"), recorded(tmp_path, CLEARING)[1]
    assert sum(call.kind == "remove" for call in calls) > 10
    found = {}
    for number, call in enumerate(calls):
        disk.make(call)
        for way in WAYS:
            left = tmp_path / f"left {number} {way}"
            write_tree(disk.left(way), left)
            found[left.name] = occupancy(left / "atlas")
            shutil.rmtree(left)
    assert {"free", "finished"} == {*found.values()}, [name for name, what in found.items() if what == "foreign"]
