"""The files of an atlas: the one place that turns the name of a table, or of another file, into a file to be read.

An atlas is a folder, or a data set on the hub at one commit (hub/reading.py). A table is checked at its first read in a
process, and again when its file, size or time change: its hash, its columns and its origin are those of the manifest.
Of the sentences, which may be large, every page that is read is checked instead, unless the atlas comes from elsewhere.
A right hash excuses no form: what rows hold is checked as they are read (tables.py). `verify` reads everything.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas.derived_manifest import read_pairs
from mnemoscope.atlas.folder import SIDES, is_named, is_shared
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.hub.reading import local_file, settle
from mnemoscope.atlas.manifest import (
    ANALYSES,
    COMPARISONS,
    EXTENSIONS,
    MANIFEST,
    MinedMemories,
    files_beside,
    read_sealed,
    table_files,
)
from mnemoscope.atlas.schema import OF_VALUES, TABLES, place, schema_error
from mnemoscope.errors import AtlasBusy, AtlasDamaged
from mnemoscope.foundation.files import HubPath, file_hash, is_file_entry, read_object, read_regular, refuse_endless
from mnemoscope.foundation.heap import ran_out

_CHECKED: dict[Path, tuple[object, Any]] = {}
"""Of each table file that this process has checked: what it was then, and its footer."""
_NEEDED = ("vocabulary", "tokens", "background"), ("triggers", "activity", "values", "neighbours")
"""The tables that every atlas has, once and for each layer; a part may lack any."""


class AtlasFiles(MinedMemories):
    """The files of one atlas, by their paths in it. With `foreign` they and their manifest come from elsewhere, as from
    the hub: only what a manifest lists is there, and each file is held against it.
    """

    def __init__(self, path: Path, manifest: Manifest, manifest_hash: str, *, foreign: bool = False) -> None:
        super().__init__(path, manifest)
        self.manifest_hash = manifest_hash
        self.foreign = foreign or isinstance(path, HubPath)

    def local(self, path: str) -> Path:
        """Where the file `path` of the atlas lies on this machine, whether or not it is there. From the hub it is
        fetched, if the format has such a file and a manifest lists it; raises AtlasDamaged, AtlasNotFound.
        """
        if not isinstance(self.path, HubPath) or not is_shared(path):
            return self.path / path
        if path.endswith(MANIFEST):
            return local_file(self.path, path)
        entry = self.entries.get(path)
        return self.path / path if entry is None else local_file(self.path, path, entry.get("bytes", 0))

    def made_later(self, side: str) -> dict[str, Any]:
        """The entries of the manifest in the folder `side`, by path; none if it belongs to another atlas."""
        known = is_shared(f"{side}/{MANIFEST}") or not isinstance(self.path, HubPath)
        return files_beside(self.path, side, self.manifest_hash) if known else {}

    @cached_property
    def entries(self) -> dict[str, Any]:
        """The entries of every file that is checked against one, by path: what mining, `extend` or `lens` has made."""
        sides = (EXTENSIONS, ANALYSES) if self.foreign else (EXTENSIONS,)
        later = {path: entry for side in sides for path, entry in self.made_later(side).items()}
        return later | dict(self.manifest.files)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """The sha256 of each of these files."""
        return {path: entry["sha256"] for path, entry in self.entries.items()}

    def forget(self) -> None:
        """Forgets what files there are, for those made since."""
        for name in ("entries", "hashes"):
            vars(self).pop(name, None)

    def checked_file(self, path: str) -> Path:
        """Where the file `path` lies, which may be read. Raises AtlasDamaged for a changed one: a flipped bit in its
        footer could hide rows from `rows_where`.
        """
        where, hash = self.local(path), self.hashes.get(path)
        refuse_endless(where)
        if (self.foreign or not path.startswith("sentences/")) and hash not in (None, file_hash(where)):
            raise self.damage(
                f"{self.path / path} is not the file that was mined (its sha256 differs);"
                f" `mnemoscope verify {self.path}` lists the damage"
            )
        return where

    @contextmanager
    def open_table(self, name: str, path: str) -> Iterator[Any]:
        """The Parquet file `path` of the table `name`, checked; errors of reading pass. Raises AtlasDamaged."""
        where = self.local(path)
        now = _identity(where), self.hashes.get(path), self.manifest.provenance
        known, footer = _CHECKED.get(where, (None, None))
        if known != now:  # never new bytes by an old footer
            footer = None
            self.checked_file(path)
        with pq.ParquetFile(where, metadata=footer, memory_map=True, page_checksum_verification=True) as file:
            if footer is None and (wrong := schema_error(name, file.schema_arrow, self.manifest.provenance)):
                raise self.damage(f"{self.path / path} does not belong to this atlas: {wrong}")
            if _identity(where) != now[0]:
                raise self.damage(f"{self.path / path} was changed while it was opened; try again")
            _CHECKED[where] = now, file.metadata
            yield file

    def read_listed(self, path: str, listed: Mapping[str, Any]) -> bytes | None:
        """What the file `path`, made later, holds; None unless it is there and has the hash that is `listed` for it."""
        try:
            data = read_regular(self.local(path))
        except OSError:
            return None
        return data if path in listed and sha256(data).hexdigest() == listed[path]["sha256"] else None

    def is_replaced(self) -> bool:
        """Whether the folder holds another atlas by now, or none."""
        return manifests_of(self.path)[0] != self.manifest_hash

    def damage(self, line: str) -> AtlasDamaged | AtlasBusy:
        """The error, with this line, of a file that is not this atlas's."""
        if self.is_replaced():
            return AtlasBusy(f"{self.path} was mined anew since it was opened; open it again")
        return AtlasDamaged(line)

    def faults(self, files: Mapping[str, Any], *, tables_only: bool = True) -> Iterator[str]:
        """The faults of listed `files`, one line each; reads all of them. Beside answers not `tables_only` lie."""
        for path in sorted(files):
            try:
                fault = self._fault(path, files[path], tables_only=tables_only)
            except FileNotFoundError:
                fault = "missing"
            except AtlasDamaged as damage:
                fault = "not a comparison that mnemoscope writes" if path.startswith(COMPARISONS) else str(damage)
            except (OSError, pa.ArrowException) as error:
                if ran_out(error):
                    raise MemoryError from error
                reason = getattr(error, "strerror", None)
                fault = f"cannot be read ({reason})" if reason else f"not a Parquet file ({str(error).splitlines()[0]})"
            if fault:
                yield f"{path}: {fault}"

    def _fault(self, path: str, entry: Any, *, tables_only: bool) -> str | None:
        if not is_file_entry(path, entry):
            return "not an entry that mnemoscope writes"
        where, placed = self.local(path), place(path)
        if file_hash(where) != entry["sha256"]:
            return "the content is not what was written (its sha256 differs)"
        if path.startswith(f"{COMPARISONS}/"):
            read_pairs(where)
        if placed is None:
            unknown = tables_only and path.endswith(".parquet")
            return f"not a table of schema {self.manifest.schema}" if unknown else None
        with pq.ParquetFile(where) as file:
            (kind, _), vocabulary = placed, self.manifest.model.sizes.vocabulary
            groups = (file.read_row_group(one) for one in range(file.num_row_groups))
            wrong = schema_error(kind.name, file.schema_arrow, self.manifest.provenance)
            return wrong or next(filter(None, (kind.content_error(rows, vocabulary) for rows in groups)), None)


def _identity(where: Path) -> tuple[int, int, int]:
    """What changes when a file is replaced or written."""
    status = where.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def manifests_of(directory: Path) -> tuple[str, ...]:
    """The sha256 of each manifest in the folder: of the atlas, its extensions, answers (with patterns) and comparisons;
    empty for a missing one.
    """
    hashes = []
    for name in (MANIFEST, *(f"{side}/{MANIFEST}" for side in (EXTENSIONS, ANALYSES, COMPARISONS))):
        try:
            hashes.append(file_hash(local_file(directory, name) if is_shared(name) else directory / name))
        except OSError:
            hashes.append("")
    return tuple(hashes)


def verify(path: str | os.PathLike[str]) -> list[str]:
    """The faults of an atlas, one line each; empty without any. Reads every covered byte and changes nothing. run.json,
    annotations and files that are no tables are not covered.

    Raises AtlasNotFound, AtlasUnfinished or AtlasTooNew where there is no atlas to verify.

    Args:
        path: The folder, or hf://datasets/USER/NAME[@REVISION].
    """
    directory = settle(path)
    try:
        atlas = AtlasFiles(directory, *read_sealed(directory))
    except AtlasDamaged as damage:
        return [str(damage)]
    covered = set(atlas.manifest.files)
    problems = [*atlas.faults(atlas.manifest.files)]
    if atlas.manifest.part is None:
        of_all, of_layers = _NEEDED
        needed = [*(TABLES[name].path() for name in of_all), TABLES["sentences"].path(0)]
        needed += [
            TABLES[name].path(layer)
            for name in of_layers
            for layer in atlas.layers
            if not (atlas.manifest.keys_only and name in OF_VALUES)
        ]
        problems += [f"{path}: missing from the manifest" for path in needed if path not in covered]
    for side in SIDES:
        problems += _faults_beside(atlas, side, covered)
    return problems + [
        f"{path}: a table that no manifest lists" for path in table_files(directory) if path not in covered
    ]


def _faults_beside(atlas: AtlasFiles, side: str, covered: set[str]) -> Iterator[str]:
    """The faults of a folder made from the atlas later; adds the files that its own manifest covers."""
    manifest = f"{side}/{MANIFEST}"
    if not atlas.local(manifest).exists():
        places = (entry.relative_to(atlas.path).as_posix() for entry in atlas.local(side).rglob("*"))
        if any(map(is_named, places)):
            yield f"{manifest}: missing"
        return
    document = read_object(atlas.local(manifest))
    files = document.get("files")
    if not isinstance(files, dict) or "atlas" not in document:
        yield f"{manifest}: not a manifest that mnemoscope writes"
        return
    covered |= set(files)
    yield from atlas.faults(files, tables_only=side == EXTENSIONS)
    if document["atlas"] != atlas.manifest_hash:
        yield f"{manifest}: made from another atlas"
