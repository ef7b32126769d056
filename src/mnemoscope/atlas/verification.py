"""Every fault of an atlas on disk: wrong hashes, missing and unknown files, wrong schemas, rows that no run writes.

Reads every covered byte and changes nothing. run.json, annotations and files that are no tables are not covered.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas.derived_manifest import read_pairs
from mnemoscope.atlas.folder import SIDES, is_named
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.manifest import COMPARISONS, EXTENSIONS, MANIFEST, read_manifest, table_files
from mnemoscope.atlas.schema import TABLES, content_error, place, schema_error
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.files import file_hash, is_file_entry, read_object
from mnemoscope.foundation.heap import ran_out


def verify(path: str | os.PathLike[str]) -> list[str]:
    """The faults of an atlas, one line each; empty without any.

    Raises AtlasNotFound, AtlasUnfinished or AtlasTooNew where there is no atlas to verify.

    Args:
        path: The folder.
    """
    directory = Path(path)
    try:
        manifest = read_manifest(directory)
    except AtlasDamaged as damage:
        return [str(damage)]
    files = manifest.files
    wrong = _wrong_files(directory, files)
    problems = [*wrong.values()]
    problems += _wrong_schemas(directory, manifest, [path for path in files if path not in wrong])
    if manifest.part is None:  # a part may lack any table
        of_all = ("vocabulary", "tokens", "background")
        needed = [*(TABLES[name].path() for name in of_all), TABLES["sentences"].path(0)]
        of_layers = ("triggers", "activity", "values", "neighbours")
        needed += [TABLES[name].path(layer) for name in of_layers for layer in manifest.layers]
        problems += [f"{path}: missing from the manifest" for path in needed if path not in manifest.hashes]
    covered = set(files)
    for side in SIDES:
        side_problems, side_covered = _wrong_side(directory, side, manifest)
        problems += side_problems
        covered |= side_covered
    problems += [f"{path}: a table that no manifest lists" for path in table_files(directory) if path not in covered]
    return problems


def _wrong_files(directory: Path, files: dict[str, Any]) -> dict[str, str]:
    problems: dict[str, str] = {}
    for path in sorted(files):
        if not is_file_entry(path, files[path]):
            problems[path] = f"{path}: not an entry that mnemoscope writes"
            continue
        try:
            if file_hash(directory / path) != files[path]["sha256"]:
                problems[path] = f"{path}: the content is not what was written (its sha256 differs)"
        except FileNotFoundError:
            problems[path] = f"{path}: missing"
        except OSError as error:
            problems[path] = f"{path}: cannot be read ({error.strerror})"
        except ValueError:  # no UTF-8
            problems[path] = f"{path!a}: not an entry that mnemoscope writes"
    return problems


def _wrong_schemas(directory: Path, manifest: Manifest, paths: list[str]) -> list[str]:
    problems, vocabulary = [], manifest.model.sizes.vocabulary
    for path in sorted(paths):
        placed = place(path)
        if placed is None:
            if path.endswith(".parquet"):
                problems.append(f"{path}: not a table of schema {manifest.schema}")
            continue
        try:
            with pq.ParquetFile(directory / path) as file:
                wrong = schema_error(placed[0].name, file.schema_arrow, manifest.provenance)
                groups = range(0 if wrong else file.num_row_groups)
                faults = (content_error(placed[0].name, file.read_row_group(one), vocabulary) for one in groups)
                wrong = wrong or next(filter(None, faults), None)
        except (OSError, pa.ArrowException) as error:
            if ran_out(error):
                raise MemoryError from error
            wrong = f"not a Parquet file ({str(error).splitlines()[0]})"
        if wrong:
            problems.append(f"{path}: {wrong}")
    return problems


def _wrong_side(directory: Path, side: str, manifest: Manifest) -> tuple[list[str], set[str]]:
    """The faults of a folder made from the atlas later, and the files that its own manifest covers."""
    folder = directory / side
    path = folder / MANIFEST
    if not folder.is_dir():
        return [], set()
    if not path.exists():
        places = [entry.relative_to(directory).as_posix() for entry in folder.rglob("*")]
        return [f"{side}/{MANIFEST}: missing"] if any(map(is_named, places)) else [], set()
    document = read_object(path)
    files = document.get("files")
    if not isinstance(files, dict) or "atlas" not in document:
        return [f"{side}/{MANIFEST}: not a manifest that mnemoscope writes"], set()
    wrong = _wrong_files(directory, files)
    problems = [*wrong.values()]
    whole = [path for path in files if path not in wrong]
    problems += _wrong_schemas(directory, manifest, [path for path in whole if side == EXTENSIONS or place(path)])
    for path in whole if side == COMPARISONS else ():
        try:
            read_pairs(directory / path)
        except AtlasDamaged:
            problems.append(f"{path}: not a comparison that mnemoscope writes")
    if document["atlas"] != file_hash(directory / MANIFEST):
        problems.append(f"{side}/{MANIFEST}: made from another atlas")
    return problems, set(files)
