"""One writer per atlas: a lock file that the operating system releases, even after `kill -9`.

Readers take no lock: a finished atlas does not change. The writer removes the file when it is done. On file systems
without locks (some of Lustre, NFS and FUSE), and on Windows, the file itself is the lock; one left by a killed process
is removed by hand, since nothing there shows whether the process still runs.
"""

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mnemoscope.atlas.folder import refuse_links
from mnemoscope.errors import AtlasBusy, AtlasDamaged, StoreFailed
from mnemoscope.foundation.files import LOCK_FILE, make_folder, remove_strays, storing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


@contextmanager
def lock_folder(directory: Path) -> Iterator[None]:
    """Locks `directory` for writing, makes it if missing, and removes half-written files of a killed writer."""
    new = not directory.exists()
    make_folder(directory)
    refuse_links(directory)
    path = directory / LOCK_FILE
    handle = _take(path, directory)
    try:
        remove_strays(directory)
        yield
    finally:
        _give_back(handle, path)
        if new:
            with suppress(OSError):  # not empty
                directory.rmdir()


def _take(path: Path, directory: Path) -> int:
    while True:
        opened = _open(path)
        if opened is None:
            continue
        handle, made = opened
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS and made:
                _sign(handle, path, f"{os.getpid()} on {platform.node()}")
                return handle
            holder = os.read(handle, 128).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise AtlasBusy(
                    f"{directory} is being written by another process (pid {holder});"
                    " wait for it or choose another folder"
                ) from None
            if error.errno in _NO_LOCKS:
                raise StoreFailed(
                    f"{path} exists, so another process (pid {holder}) writes {directory} or was killed there: this"
                    " file system cannot tell which; wait for it, or delete that file if no such process runs"
                ) from None
            raise StoreFailed(f"cannot lock {path}: {error.strerror}; choose another folder") from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(handle)):
                _sign(handle, path, str(os.getpid()))
                return handle
        os.close(handle)


def _open(path: Path) -> tuple[int, bool] | None:
    """The lock file, and whether it was created now; None if it vanished meanwhile. Follows no link."""
    if path.is_symlink():
        raise AtlasDamaged(f"{path} is a symbolic link, and an atlas is not written through one; remove it")
    with storing(path):
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), True
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), False
    return None


def _sign(handle: int, path: Path, who: str) -> None:
    """Writes the holder into the lock file; on a full disk releases the lock."""
    try:
        with storing(path):
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, f"{who}\n".encode())
    except StoreFailed:
        _give_back(handle, path)
        raise


def _give_back(handle: int, path: Path) -> None:
    """Removes the lock file and releases it, even where the disk refuses the removal (StoreFailed)."""
    if fcntl is None:  # Windows removes no file that is open
        os.close(handle)
        with storing(path):
            path.unlink(missing_ok=True)
        return
    try:
        # Unlinked while held: a process that opened the old file sees, after locking it, that its name is gone.
        with storing(path):
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
