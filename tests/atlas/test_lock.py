"""One writer per folder, also across processes and after `kill -9`."""

import errno
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mnemoscope.atlas.lock import lock_folder
from mnemoscope.errors import AtlasBusy, StoreFailed

HOLD = """
import sys
from pathlib import Path
from mnemoscope.atlas.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_writes(tmp_path: Path) -> None:
    directory = tmp_path / "atlas"
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(AtlasBusy, match=rf"pid {other.pid}\)"), lock_folder(directory):
            pass
        (directory / ".table.parquet.1.mnemoscope-tmp").write_text("half")
        other.kill()
        other.wait()
    with lock_folder(directory):
        assert [path.name for path in directory.iterdir()] == [".lock"]
    assert list(directory.iterdir()) == []


def test_a_folder_made_for_nothing_is_taken_away_again(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "new"):
        pass
    assert list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path / "new"):
        (tmp_path / "new" / "table").write_text("rows")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["table"]


def test_a_lock_file_that_cannot_be_removed_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", refuse)
        with pytest.raises(StoreFailed, match=r"cannot write .*\.lock: Input/output error"), lock_folder(tmp_path):
            pass
    with lock_folder(tmp_path):  # or this process, which may be a server, could never write here again
        pass
    assert list(tmp_path.iterdir()) == []


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(AtlasBusy), lock_folder(tmp_path):
        pass


def test_strays_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "triggers").mkdir()
    stray = tmp_path / "triggers" / ".layer-000.parquet.77.mnemoscope-tmp"
    kept = tmp_path / "triggers" / ".hidden"
    for path in (stray, kept):
        path.write_text("")
    with lock_folder(tmp_path):
        assert not stray.exists()
        assert kept.exists()


def test_what_another_process_writes_inside_is_no_stray(tmp_path: Path) -> None:
    """The search index has a lock of its own: a report beside a search must not take away what it writes."""
    half = tmp_path / "search" / ".index.sqlite.77.mnemoscope-tmp"
    with lock_folder(half.parent):
        half.write_text("half")
        with lock_folder(tmp_path):
            assert half.exists()
    assert half.exists()
    with lock_folder(tmp_path):
        assert not half.exists()


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The file is the lock: a second writer is refused, and told what to do about one that was killed."""

    def refused(handle: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)
    with lock_folder(tmp_path / "a"):
        said = (tmp_path / "a" / ".lock").read_text()
        assert said == f"{os.getpid()} on {platform.node()}\n"
        with pytest.raises(StoreFailed, match=rf"pid {os.getpid()} on .* delete"):
            hold(tmp_path / "a")
        assert (tmp_path / "a" / ".lock").read_text() == said
        (tmp_path / "a" / "table").write_text("rows")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["table"]
    hold(tmp_path / "a")


def test_a_lock_that_fails_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(handle: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(StoreFailed, match=r"cannot lock .*\.lock: Input/output error"):
        hold(tmp_path)


def test_folders_that_are_written_somewhere_else_are_no_strays(tmp_path: Path) -> None:
    """Browsing pages are made in a folder beside their place, without the atlas's lock."""
    half = tmp_path / ".browse.77.mnemoscope-tmp"
    half.mkdir()
    (half / "index.html").write_text("page")
    hold(tmp_path)
    assert (half / "index.html").exists()


def hold(directory: Path) -> None:
    with lock_folder(directory):
        pass
