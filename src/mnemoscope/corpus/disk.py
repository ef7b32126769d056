"""Plain arrays in files: written once from front to back, read memory-mapped, their pages given back.

An array file is the bytes of a numpy array and nothing else (little-endian); what it means stands in the JSON beside
it. Pages of a mapped file count as resident memory of the process, so whoever walks over a large array calls
`MappedArray.release` now and then. What the operating system refuses becomes one plain line.
"""

import errno
import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mnemoscope.errors import StoreFailed
from mnemoscope.files import flush

_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO}


@contextmanager
def storing(directory: Path) -> Iterator[None]:
    """Raises StoreFailed, in one line, for a full disk, a read-only folder or a missing permission in `directory`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED and not isinstance(error, FileExistsError | NotADirectoryError):
            raise
        reason = error.strerror or str(error)
        raise StoreFailed(f"cannot write to {directory}: {reason}; make room or name another folder") from None


@final
class MappedArray:
    """A one-dimensional array in a file, mapped into memory."""

    def __init__(self, path: Path, dtype: DTypeLike, *, writable: bool = False) -> None:
        """Maps all of `path`."""
        kind = np.dtype(dtype)
        self._mapped: mmap.mmap | None = None
        self.array: NDArray[Any] = np.empty(0, kind)
        with path.open("r+b" if writable else "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                self._mapped = mmap.mmap(file.fileno(), 0, access=access)
                self.array = np.frombuffer(self._mapped, kind)

    def release(self) -> None:
        """Gives the pages back to the operating system; the array stays valid and nothing written is lost."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)


def allocate(path: Path, size: int) -> None:
    """Makes a file of `size` zero bytes whose room on disk is certain; raises OSError where there is none.

    Writing through a map to a file whose room is not certain kills the process when the disk is full.
    """
    with path.open("wb") as file:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Stores a JSON file at once or not at all."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    flush(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` stored, or None where there is no such file or it is none of ours."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def digest_of_files(paths: Iterable[Path]) -> str:
    """The sha256, in hex, of the names, sizes and dates of files, in this order; one may be missing."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = path.stat()
            known = [str(path), stat.st_size, stat.st_mtime_ns]
        except OSError:
            known = [str(path)]
        digest.update(json.dumps(known).encode())
    return digest.hexdigest()
