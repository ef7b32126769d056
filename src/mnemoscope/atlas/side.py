"""Manifests of the folders that are made from a finished atlas: `analyses/` and `report/`.

The atlas's own manifest never changes after mining, so what is made later is covered by a manifest beside it: the hash
of every file and of the atlas's manifest. `patterns.parquet`, which can be made again, is covered by `analyses/`'s.
Verification reads these manifests; nothing here judges them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.atlas.store import file_hash, make_folder, write_json


def cover(directory: Path, side: str, paths: Iterable[str], *, anew: bool = False) -> None:
    """Writes the hashes of `paths` (relative to the atlas) into the manifest of the folder `side`.

    Entries of other files stay if they were made from this atlas and exist; `anew` drops them. Raises StoreFailed.
    """
    folder = directory / side
    make_folder(folder)
    atlas = file_hash(directory / MANIFEST)
    kept = {} if anew else covered(directory, side)
    fresh = {
        path: {"bytes": (directory / path).stat().st_size, "sha256": file_hash(directory / path)} for path in paths
    }
    files = {path: entry for path, entry in kept.items() if (directory / path).is_file()} | fresh
    write_json(folder / MANIFEST, {"atlas": atlas, "files": dict(sorted(files.items()))})


def made_files(path: Path, entry: str = "files") -> dict[str, Any]:
    """The files that a manifest beside an atlas lists; none where `path` is not a manifest of that form."""
    try:
        said = json.loads(path.read_bytes())
        files, atlas = said[entry], said["atlas"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    known = isinstance(atlas, str) and re.fullmatch(r"[0-9a-f]{64}", atlas) is not None
    return files if known and isinstance(files, dict) and said.keys() == {"atlas", entry} else {}


def covered(directory: Path, side: str) -> dict[str, Any]:
    """The files that the manifest of `side` lists, relative to the atlas; none where it was made from another atlas."""
    try:
        said = json.loads((directory / side / MANIFEST).read_bytes())
        return dict(said["files"]) if said["atlas"] == file_hash(directory / MANIFEST) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
