"""A disk that can fail: builds and speaks to faulty_disk.c, and reads what it wrote down. Not a test itself.

The library must be preloaded into the process (`begin_again_preloaded`); then it sees what every library in it writes,
SQLite's included. What a thread of the kernel writes, or a child that was not forked from here, it does not see.
"""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
KINDS = (
    "create",
    "write",
    "truncate",
    "flush",
    "rename",
    "link",
    "remove",
    "make folder",
    "remove folder",
    "note",
)
"""Of calls, in the order of the library's numbers; notes are no calls."""
_RECORD = struct.Struct("<IIQqQII")
_PRELOADED = "MNEMOSCOPE_FAULTY_DISK"


@dataclass(frozen=True)
class Call:
    """One call, made or refused; `path` and `other` (a new name) are relative to the root, "." for the root itself."""

    kind: str
    failed: bool
    inode: int
    at: int
    path: str
    other: str
    data: bytes

    @property
    def where(self) -> tuple[str, str]:
        """The kind of call, and the kind of file that it was made on."""
        return self.kind, kind_of_file(self.other or self.path)


def kind_of_file(path: str) -> str:
    """A path without what differs from run to run and from layer to layer."""
    path = re.sub(r"\.(?=[^/]*\.mnemoscope-tmp$)(.+?)(\.\d+(-[0-9a-f]+)?)?\.mnemoscope-tmp$", r"\1", path)
    path = re.sub(r"#\d+$", "temporary", path.removesuffix(" (deleted)"))
    path = re.sub(r"/tmp\w{8}(?=/|$)", "/temporary", path)
    return re.sub(r"\d+", "N", path)


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """The library, compiled into the folder."""
    found, library = compiler(), folder / "faulty_disk.so"
    if found is None:
        raise SystemExit("there is no C compiler; install gcc")
    if not library.exists():
        fresh = folder / f"faulty_disk.{os.getpid()}"
        command = [found, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", fresh, SOURCE]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True)
        fresh.rename(library)
    return library


def begin_again_preloaded() -> None:
    """Starts this very program again with the library in it, unless it has it."""
    if os.environ.pop(_PRELOADED, None):
        shutil.rmtree(Path(os.environ.pop("LD_PRELOAD")).parent)
        return
    folder = Path(tempfile.mkdtemp(prefix="faulty-disk-"))
    os.environ.update({_PRELOADED: "1", "LD_PRELOAD": str(build(folder))})
    os.execv(sys.executable, [sys.executable, *sys.argv])


def begin(root: Path, diary: Path, *, fail_at: int | None = None, error: int = 0) -> None:
    """From here on calls below `root` go into the diary; call number `fail_at` is refused with `error`."""
    place = -1 if fail_at is None else fail_at
    ctypes.CDLL(None).faults_begin(os.fsencode(root), os.fsencode(diary), ctypes.c_long(place), error)


def end() -> None:
    """Ends what `begin` began."""
    ctypes.CDLL(None).faults_end()


def note(text: str) -> None:
    """Writes a word between the calls."""
    ctypes.CDLL(None).faults_note(text.encode())


def read(diary: Path, root: Path) -> list[Call]:
    """The calls of a diary, in order."""
    data, at, calls = diary.read_bytes(), 0, []
    while at < len(data):
        kind, failed, inode, offset, size, path, other = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        names = []
        for length in (path, other):
            name = os.fsdecode(data[at : at + length])
            names.append(os.path.relpath(name, root) if name else "")
            at += length
        calls.append(Call(KINDS[kind], bool(failed), inode, offset, *names, data[at : at + size]))
        at += size
    return calls
