"""Writes files so that a crash leaves the old file or the new one, never half of one.

Every file is written under a temporary name in its own folder, flushed to disk and renamed. Errors of the operating
system become StoreFailed. Nothing is written on the hub, whose places have a path of their own kind (`HubPath`). Knows
nothing about the contents.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PosixPath, PurePosixPath
from stat import S_ISREG
from typing import Any, BinaryIO, Self

from mnemoscope.errors import OptionError, StoreFailed

LOCK_FILE = ".lock"
_LONGEST_PATH = 255
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_TEMPORARY = ".*.mnemoscope-tmp"


class HubPath(PosixPath):
    """The place of an atlas on the hub, `hf://datasets/USER/NAME@REVISION`, or of a file in it: nothing lies there on
    this machine; atlas/hub/reading.py fetches what the hub has.
    """

    def __str__(self) -> str:
        return super().__str__().replace("hf:/", "hf://", 1)

    def absolute(self) -> Self:
        return self

    @property
    def repository(self) -> str:
        return "/".join(self.parts[2:4]).partition("@")[0]

    @property
    def revision(self) -> str:
        return self.parts[3].partition("@")[2] or "main"


def locate(path: str | os.PathLike[str]) -> Path:
    """The path of a folder or a file, or its place on the hub. Raises OptionError for an impossible address there."""
    text = os.fspath(path).rstrip("/")
    if isinstance(path, HubPath) or not text.startswith("hf:/"):
        return path if isinstance(path, HubPath) else Path(path)
    if not re.fullmatch(r"hf:/{1,2}datasets/[\w.-]+/[\w.-]+(@[\w.-]+)?", text, re.ASCII) or ".." in text:
        raise OptionError(f"{text!r} is no data set on the hub; write hf://datasets/USER/NAME or .../NAME@REVISION")
    return HubPath(text)


def refuse_hub(path: Path) -> None:
    """Raises StoreFailed for a place on the hub. The copy that it advises is without files that verbs trust."""
    if isinstance(path, HubPath):
        name, but = path.repository, "--exclude '*.sqlite' --exclude run.json"
        where = f"--revision {path.revision} --local-dir {name.partition('/')[2]}"
        command = f"hf download {name} --repo-type dataset {where} {but}"
        raise StoreFailed(
            f"{path} is on the hub, where an atlas is read only; download it with `{command}` and name that folder"
        ) from OSError(errno.EROFS, os.strerror(errno.EROFS))


def check_spelling(*paths: object) -> None:
    """Raises OptionError for a path, or another word of a command, that is not UTF-8: neither JSON nor Parquet nor
    SQLite can name it.
    """
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise OptionError(f"{str(path)!a} is not UTF-8 and cannot be used; rename it") from None


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turns an OSError inside the block into StoreFailed, which names `path` and, where it counts, free space."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = "make room or choose another folder" if error.errno in _FULL else "choose another folder"
        room = "" if error.errno in _FORBIDDEN else _room_left(path)
        raise StoreFailed(f"cannot write {path}: {reason}{room}; {advice}, then run it again") from error


def is_writable(folder: Path) -> bool:
    """Whether the system lets this process write into a folder, or make it: not where the disk is read-only."""
    if isinstance(folder, HubPath):
        return False
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.exists(one))
    return os.path.isdir(there) and os.access(there, os.W_OK)


def _room_left(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            return f" ({shutil.disk_usage(folder).free / 1e6:,.1f} MB free there)"
        except OSError:
            continue
    return ""


def flush(path: Path) -> None:
    """Makes a file's content, or the renames inside a folder, survive a power cut; does nothing on Windows."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Makes `folder` and its missing parents so that they survive a power cut."""
    refuse_hub(folder)
    with storing(folder):
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for place in missing:
            with suppress(PermissionError):  # a parent that is writable and not readable
                flush(place.parent)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a binary file that becomes `path` if the block succeeds and leaves no trace if not."""
    make_folder(path.parent)
    # A process of another machine with the same number may write the same file now.
    temporary = path.parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.mnemoscope-tmp"
    with storing(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    with replacing(path) as file:
        file.write(data)


def copy_file(source: Path, path: Path) -> None:
    with source.open("rb") as old, replacing(path) as new:
        shutil.copyfileobj(old, new, 1 << 20)


def write_json(path: Path, value: object) -> None:
    write_bytes(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """The store's only spelling of JSON: sorted keys, one space of indent, finite numbers (else ValueError)."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def refuse_endless(path: Path) -> None:
    """Raises OSError for a pipe, a device or a folder: reading the first two may never end."""
    if not S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path) -> bytes:
    """What a file holds."""
    refuse_endless(path)
    return path.read_bytes()


def file_hash(path: Path) -> str:
    refuse_endless(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_files(paths: Iterable[Path]) -> str:
    """The sha256, in hex, of the names, sizes and modification times of files, in this order; a file may be missing."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = path.stat()
            entry = [str(path), stat.st_size, stat.st_mtime_ns]
        except OSError:
            entry = [str(path)]
        digest.update(json.dumps(entry).encode())
    return digest.hexdigest()


def file_entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def is_inside(path: str) -> bool:
    """Whether a name from an untrusted file is that of a file in a folder, and leads out of none."""
    place = PurePosixPath(path)
    inside = place.parts and not place.is_absolute() and ".." not in place.parts and "\0" not in path
    return bool(inside and len(path) <= _LONGEST_PATH and path.encode(errors="replace").decode() == path)


def is_file_entry(path: str, entry: Any) -> bool:
    """Whether an entry of an untrusted manifest has the form of `file_entry` and stays in the folder."""
    size = entry.get("bytes", 0) if isinstance(entry, dict) else None
    return is_inside(path) and type(size) is int and size >= 0 and is_hash(entry.get("sha256"))


def is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; empty where the file is missing or holds something else."""
    try:
        value = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def remove_strays(directory: Path) -> None:
    """Removes temporary files that a killed process left behind. The caller holds the lock; a folder inside with one of
    its own (that of the search index) may be written by another process, and is left alone.
    """
    for stray in [path for path in directory.rglob(_TEMPORARY) if path.is_symlink() or not path.is_dir()]:
        if stray.parent == directory or not (stray.parent / LOCK_FILE).exists():
            with storing(stray):
                stray.unlink(missing_ok=True)
