"""Writes a folder of files that people keep: a report, or pages as files.

All files are first written into a folder of their own inside, and then moved to their places, the manifest last. So a
full disk changes nothing, and files of others are never touched.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import OptionError, StoreFailed
from mnemoscope.foundation.files import flush, is_writable, make_folder, storing, write_bytes

Write = Callable[[Mapping[str, bytes], Collection[str]], None]


@contextmanager
def replacing_files(directory: Path) -> Iterator[Write]:
    """Inside the block `write(files, earlier)` replaces earlier files, by names in `directory`."""
    with storing(directory):
        is_new = not directory.exists()
    make_folder(directory)
    fresh = directory / f".{os.getpid()}.mnemoscope-tmp"

    def write(files: Mapping[str, bytes], earlier: Collection[str]) -> None:
        for name, data in files.items():
            with storing(directory / name):
                write_bytes(fresh / name, data)
        for name in sorted(files, key=lambda name: (name == MANIFEST, name)):
            path = directory / name
            make_folder(path.parent)
            with storing(path):
                (fresh / name).replace(path)
        with storing(directory):
            for name in set(earlier) - files.keys():
                (directory / name).unlink(missing_ok=True)
            for folder in {(directory / name).parent for name in (*files, *earlier)}:
                with suppress(OSError):  # stays while it holds a file
                    folder.rmdir()
                if folder.exists():
                    flush(folder)

    try:
        with storing(directory):
            for stray in directory.glob(".*.mnemoscope-tmp"):  # of a killed process
                rmtree(stray, ignore_errors=True)
            fresh.mkdir()
        yield write
    finally:
        rmtree(fresh, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # stays while it holds a file
                directory.rmdir()


def check_writable(directory: Path) -> None:
    """Raises StoreFailed before anything is made that cannot be written."""
    if not is_writable(directory):
        raise StoreFailed(f"{directory} cannot be written; choose another folder with --out")


def is_beside(directory: Path, home: Path, side: str) -> bool:
    """Whether `directory` is the folder `side` of the atlas in `home`."""
    place, home = directory.resolve(), home.resolve()
    if place == home or place in home.parents or (home in place.parents and place != home / side):
        where = f"{directory} holds the atlas or lies inside the atlas"
        raise OptionError(f"{where}; leave out --out, or choose another folder")
    return place == home / side
