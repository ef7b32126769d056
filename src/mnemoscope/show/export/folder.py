"""The one writer of folders that are made from an atlas or an answer, and made again: a report, pages, a graph.

All files are first written into a folder of their own inside, and then moved to their places, the manifest last. So a
full disk changes nothing. Of what lay there before, only files that the manifest lists are removed.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from mnemoscope.atlas.folder import SIDES
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AtlasExists, OptionError, StoreFailed
from mnemoscope.foundation.files import (
    flush,
    is_hash,
    is_inside,
    is_writable,
    json_bytes,
    make_folder,
    read_object,
    storing,
    write_bytes,
)

PAGE = "index.html"
"""The file that every folder of pages has."""


@dataclass(frozen=True)
class MadeFolder:
    """The folder `directory` of files made from the atlas in `home`: its folder `side` (empty: none), or another one
    that is empty or was made so before, and so has a `page` of this name. Without a `home` it is made from something
    else. Its manifest lists the files under `entry`, and the hash of their `source`.
    """

    directory: Path
    home: Path | None
    side: str
    entry: str = "files"
    page: str = PAGE
    source: str = "atlas"

    @property
    def is_inside(self) -> bool:
        """Whether it is the atlas's folder `side`."""
        return self.home is not None and self.directory.resolve() == self.home.resolve() / self.side

    @property
    def _prefix(self) -> str:
        """What names in a manifest begin with that the atlas's verification reads."""
        return f"{self.side}/" if self.side in SIDES and self.is_inside else ""

    def made_before(self) -> dict[str, Any]:
        """The entries of the files made before, by name in the folder; none where its manifest is of something else."""
        stored = read_object(self.directory / MANIFEST)
        files = stored.get(self.entry)
        if (
            not isinstance(files, dict)
            or stored.keys() != {self.source, self.entry}
            or not is_hash(stored[self.source])
        ):
            return {}
        names = {name.removeprefix(self._prefix): entry for name, entry in files.items()}
        return {name: entry for name, entry in names.items() if is_inside(name)}

    def check(self, what: str) -> None:
        """Raises OptionError, AtlasExists or StoreFailed, before anything is made, where `what` cannot be written."""
        directory, place, home = self.directory, self.directory.resolve(), self.home and self.home.resolve()
        if home and (place == home or place in home.parents or (home in place.parents and not self.is_inside)):
            raise OptionError(f"{directory} holds the atlas or lies inside the atlas; choose another folder")
        with storing(directory):
            if directory.exists() and not directory.is_dir():
                raise AtlasExists(f"{directory} is not a folder; choose another")
            taken = directory.exists() and any(directory.iterdir()) and not self._prefix
        if taken and self.page not in self.made_before():
            raise AtlasExists(f"{directory} holds something other than {what}; choose another folder")
        if not is_writable(directory):
            raise StoreFailed(f"{directory} cannot be written; choose another folder")

    def replace(self, files: Mapping[str, bytes], listed: Mapping[str, Any], *, atlas: str) -> int:
        """Writes these files in place of earlier ones, `listed` by the manifest as made from the atlas (or other
        source) of that hash; returns the number of bytes.
        """
        directory, earlier, is_new = self.directory, self.made_before().keys(), not self.directory.exists()
        entries = {f"{self._prefix}{name}": entry for name, entry in listed.items()}
        whole = {**files, MANIFEST: json_bytes({self.source: atlas, self.entry: entries})}
        fresh = directory / f".{os.getpid()}.mnemoscope-tmp"
        make_folder(directory)
        try:
            with storing(directory):
                for stray in directory.glob(".*.mnemoscope-tmp"):  # of a killed process
                    rmtree(stray, ignore_errors=True)
                fresh.mkdir()
            for name, data in whole.items():
                write_bytes(fresh / name, data)
            for name in whole:
                make_folder((directory / name).parent)
                with storing(directory / name):
                    (fresh / name).replace(directory / name)
            with storing(directory):
                for name in earlier - whole.keys():
                    (directory / name).unlink(missing_ok=True)
                for folder in {(directory / name).parent for name in (*whole, *earlier)}:
                    with suppress(OSError):  # stays while it holds a file
                        folder.rmdir()
                    if folder.exists():
                        flush(folder)
        finally:
            rmtree(fresh, ignore_errors=True)
            if is_new:
                with suppress(OSError):
                    directory.rmdir()
        return sum(map(len, whole.values()))
