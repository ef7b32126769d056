"""One writer per atlas: a lock file that the operating system releases, even after `kill -9`.

Readers take no lock: a finished atlas does not change. The file is removed when the writer is done.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mnemoscope.atlas.store import make_folder, remove_strays, storing
from mnemoscope.errors import AtlasBusy, StoreFailed

LOCK_FILE = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds `directory` for writing, and removes what a killed writer left half-written.

    The folder is made where it is missing, and taken away again if nothing was written into it.

    Raises AtlasBusy, naming the other process, at once rather than waiting; StoreFailed if no lock file can be made.
    """
    new = not directory.exists()
    make_folder(directory)
    path = directory / LOCK_FILE
    handle = _take(path, directory)
    try:
        remove_strays(directory)
        yield
    finally:
        # Unlinked while still held: whoever opened the old file sees, after locking it, that its name is gone.
        path.unlink(missing_ok=True)
        os.close(handle)
        if new:
            with suppress(OSError):  # it holds something
                directory.rmdir()


def _take(path: Path, directory: Path) -> int:
    """An open, locked handle on the file that bears the name `path`."""
    while True:
        with storing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise AtlasBusy(
                f"{directory} is being written by another process (pid {holder}); wait for it or choose another folder"
            ) from None
        try:
            named = os.stat(path)
            ours = os.fstat(handle)
            if (named.st_ino, named.st_dev) == (ours.st_ino, ours.st_dev):
                _sign(handle, path)
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


def _sign(handle: int, path: Path) -> None:
    """Writes this process's number into the lock file; on a full disk gives the lock back."""
    try:
        with storing(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except StoreFailed:
        path.unlink(missing_ok=True)
        os.close(handle)
        raise
