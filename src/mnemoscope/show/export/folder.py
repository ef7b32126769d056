"""The one writer of folders that are made from an atlas or an answer, and made again: a report, pages, exports.

All files are first written into a folder of their own inside, one after the other, and then moved to their places, the
manifest last. So a full disk changes nothing, and no file need fit into memory. Of what lay there before, only files
that the manifest lists are removed.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from mnemoscope.atlas.folder import SIDES
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AtlasExists, OptionError, StoreFailed
from mnemoscope.foundation.files import (
    file_entry,
    flush,
    is_hash,
    is_inside,
    is_writable,
    make_folder,
    read_object,
    replacing,
    storing,
    write_json,
)

PAGE = "index.html"
Contents = Iterable[tuple[str, bytes | Iterable[bytes]]]
"""Files by their names in a folder, each whole or in pieces, made as they are written."""


@dataclass(frozen=True)
class MadeFolder:
    """The folder `directory` of files made from the atlas in `home`: its folder `side`, if it has one, or another one
    that is empty or was made so before. Without a `home` it is made from something else. Its manifest lists the files
    under `entry`, among them always the `mark`, and the hash of their `source`.
    """

    directory: Path
    home: Path | None
    side: str | None
    entry: str = "files"
    mark: str = PAGE
    source: str = "atlas"

    @property
    def is_inside(self) -> bool:
        """Whether it is the atlas's folder `side`."""
        if self.home is None or self.side is None:
            return False
        return self.directory.resolve() == self.home.resolve() / self.side

    @property
    def _prefix(self) -> str:
        """What names in a manifest begin with that the atlas's verification reads."""
        return f"{self.side}/" if self.side in SIDES and self.is_inside else ""

    def made_before(self) -> dict[str, Any]:
        """The entries of the files made before, by name in the folder; none where its manifest is of something else."""
        stored = read_object(self.directory / MANIFEST)
        files, source = stored.get(self.entry), stored.get(self.source)
        if not isinstance(files, dict) or stored.keys() != {self.source, self.entry} or not is_hash(source):
            return {}
        names = {name.removeprefix(self._prefix): entry for name, entry in files.items()}
        return {name: entry for name, entry in names.items() if is_inside(name)}

    def check(self, what: str) -> None:
        """Raises OptionError, AtlasExists or StoreFailed, before anything is made, where `what` cannot be written."""
        directory, place, home = self.directory, self.directory.resolve(), self.home and self.home.resolve()
        if home and (place == home or place in home.parents or (home in place.parents and not self.is_inside)):
            where = f"{directory} holds the atlas or lies inside the atlas"
            raise OptionError(f"{where}; {'leave out --out, or ' if self.side else ''}choose another folder")
        with storing(directory):
            if directory.exists() and not directory.is_dir():
                raise AtlasExists(f"{directory} is not a folder; choose another")
            taken = directory.exists() and any(directory.iterdir()) and not self._prefix
        if taken and self.mark not in self.made_before():
            raise AtlasExists(f"{directory} holds something other than {what}; choose another folder")
        if not is_writable(directory):
            raise StoreFailed(
                f"{directory} cannot be written; choose another folder{' with --out' if self.side else ''}"
            )

    def replace(self, files: Contents, *, source: str) -> dict[str, int]:
        """Writes these files in place of earlier ones, and the manifest, which says that they were made from the source
        of that hash; returns the bytes of each.
        """
        directory, earlier, is_new = self.directory, self.made_before().keys(), not self.directory.exists()
        entries: dict[str, Any] = {}
        fresh = directory / f".{os.getpid()}.mnemoscope-tmp"
        make_folder(directory)
        try:
            with storing(directory):
                for stray in directory.glob(".*.mnemoscope-tmp"):  # of a killed process
                    rmtree(stray, ignore_errors=True)
                fresh.mkdir()
            for name, data in files:
                with replacing(fresh / name) as file:
                    file.writelines((data,) if isinstance(data, bytes) else data)
                entries[name] = file_entry(fresh / name)
            listed = {f"{self._prefix}{name}": entry for name, entry in entries.items()}
            write_json(fresh / MANIFEST, {self.source: source, self.entry: listed})
            entries[MANIFEST] = file_entry(fresh / MANIFEST)
            for name in entries:
                make_folder((directory / name).parent)
                with storing(directory / name):
                    (fresh / name).replace(directory / name)
            with storing(directory):
                for name in earlier - entries.keys():
                    (directory / name).unlink(missing_ok=True)
                for folder in {(directory / name).parent for name in (*entries, *earlier)}:
                    with suppress(OSError):  # stays while it holds a file
                        folder.rmdir()
                    if folder.exists():
                        flush(folder)
        finally:
            rmtree(fresh, ignore_errors=True)
            if is_new:
                with suppress(OSError):
                    directory.rmdir()
        return {name: entry["bytes"] for name, entry in entries.items()}
