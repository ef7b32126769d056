"""Manifests of the folders that are made from a finished atlas: `extensions/`, `analyses/` and `report/`.

The atlas's own manifest never changes after mining, so what is made later is covered by a manifest beside it: the hash
of every file and of the atlas's manifest. `patterns.parquet`, which can be made again, is covered by `analyses/`'s,
optional tables that were made later and fitted lenses by `extensions/`'s.
What was made from an opened atlas is never written beside another that took its place meanwhile.
Verification reads these manifests; nothing here judges them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import MANIFEST, files_beside
from mnemoscope.atlas.read import Atlas
from mnemoscope.errors import AtlasBusy, AtlasExists
from mnemoscope.foundation.files import file_entry, file_hash, is_hash, make_folder, read_object, storing, write_json


@contextmanager
def write_beside(atlas: Atlas) -> Iterator[None]:
    """Holds the folder of an opened atlas for writing what was made from it.

    Raises AtlasBusy while another process writes it, and if another atlas lies there since this one was opened.
    """
    with lock_folder(atlas.path):
        if not _is_there(atlas):
            raise AtlasBusy(f"{atlas.path} was mined again while it was being read; run the command again")
        yield


def record_hashes(atlas: Atlas, side: str, paths: Iterable[str], *, anew: bool = False) -> None:
    """Writes the hashes of `paths` (relative to the atlas) into the manifest of the folder `side`.

    Entries of other files stay if they were made from this atlas and exist; `anew` drops them. The folder is held by
    the caller. Raises StoreFailed.
    """
    directory = atlas.path
    folder = directory / side
    make_folder(folder)
    kept = {} if anew else recorded_hashes(atlas, side)
    files = {path: entry for path, entry in kept.items() if (directory / path).is_file()}
    files |= {path: file_entry(directory / path) for path in paths}
    write_json(folder / MANIFEST, {"atlas": atlas.manifest_hash, "files": dict(sorted(files.items()))})


def made_files(path: Path, entry: str = "files") -> dict[str, Any]:
    """The files that a manifest beside an atlas lists; none where `path` is not a manifest of that form."""
    said = read_object(path)
    files = said.get(entry)
    return files if isinstance(files, dict) and said.keys() == {"atlas", entry} and is_hash(said["atlas"]) else {}


def check_replaceable(directory: Path, is_own: Callable[[Path], bool], what: str) -> None:
    """Raises AtlasExists unless `directory` does not exist, is empty, or holds `what` was written there before."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise AtlasExists(f"{directory} is not a folder; choose another")
    with storing(directory):
        empty = not any(directory.iterdir())
    if not empty and not is_own(directory):
        raise AtlasExists(f"{directory} holds something else than {what}; choose another folder")


def recorded_hashes(atlas: Atlas, side: str) -> dict[str, Any]:
    """The files that the manifest of `side` lists, relative to the atlas; none where it was made from another atlas."""
    return files_beside(atlas.path, side, atlas.manifest_hash)


def _is_there(atlas: Atlas) -> bool:
    try:
        return file_hash(atlas.path / MANIFEST) == atlas.manifest_hash
    except OSError:
        return False
