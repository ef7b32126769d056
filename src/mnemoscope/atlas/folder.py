"""Classifies the contents of a folder, and decides which of its files are an atlas's own.

A folder is an atlas only if its marks have the form that this package writes, since many tools use the name
`manifest.json`. Removal takes only files that the format names, and files that a manifest of the atlas lists with their
present hash; everything else stays, and so does every folder that holds it.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas.manifest import (
    ANALYSES,
    COMPARISONS,
    EXTENSIONS,
    MANIFEST,
    RUN,
    SEAL,
    STATE,
    UNFINISHED,
    WORK,
    table_files,
    unfinished_plan,
)
from mnemoscope.atlas.schema import QUESTIONS, TABLES, place
from mnemoscope.errors import AtlasDamaged, StoreFailed
from mnemoscope.foundation.files import (
    LOCK_FILE,
    file_hash,
    flush,
    is_file_entry,
    read_object,
    read_regular,
    remove_strays,
    storing,
)

LENSES = "lenses"

Occupancy = Literal["free", "unfinished", "finished", "foreign"]

SIDES = (EXTENSIONS, ANALYSES, "report", COMPARISONS)
_TEXT = f"{WORK}/text/"
_SHARED = ("leases", "states", "closed", "beats", "records")
FOLDERS = (
    *sorted(kind.name for kind in TABLES.values() if kind.numbered),
    STATE,
    WORK,
    f"{WORK}/text",
    f"{WORK}/text/validation",
    *(f"{WORK}/{name}" for name in _SHARED),
    *SIDES,
    LENSES,
    "report/figures",
    "search",
)
"""Every folder inside an atlas, outer ones first. `browse` is a folder of its own; the folders of workers and of their
leases match `_NAMED_FOLDER`."""

_QUESTION = "|".join(QUESTIONS)
_NAMED = re.compile(
    rf"state/[a-z]+\.safetensors"
    rf"|work/[a-z0-9-]+\.(safetensors|json|parquet)"
    rf"|work/leases/[a-z0-9-]+/[0-9]+\.[0-9]+\.[A-Za-z0-9-]+"
    rf"|work/(states|closed)/[A-Za-z0-9-]+/state\.safetensors(\.part)?"
    rf"|work/beats/[A-Za-z0-9-]+\.json"
    rf"|work/records/[A-Za-z0-9-]+\.jsonl"
    rf"|work/text/(validation/)?(copy\.json|[a-z_]+\.bin(\.spill)?)"
    rf"|{EXTENSIONS}/manifest\.json"
    rf"|{LENSES}/[a-z]+\.safetensors"
    rf"|analyses/(manifest\.json|({_QUESTION})(\.json|(\.cases)?\.parquet))"
    rf"|report/(manifest\.json|index\.html|figures/({_QUESTION})\.(svg|png|pdf))"
    rf"|{COMPARISONS}/[A-Za-z0-9._-]+\.json"
    rf"|search/(index\.sqlite|\.lock)"
)
_OF_READERS = re.compile(
    rf"{MANIFEST}|{SEAL}|({EXTENSIONS}|{ANALYSES})/manifest\.json|{LENSES}/[a-z]+\.safetensors"
    rf"|{ANALYSES}/({_QUESTION})(\.json|(\.cases)?\.parquet)"
)
_NAMED_FOLDER = re.compile(r"work/(leases|states|closed)/[A-Za-z0-9-]+")


def _folders(directory: Path) -> list[str]:
    places = [place for name in _SHARED for place in (directory / WORK / name).glob("*") if place.is_dir()]
    names = [place.relative_to(directory).as_posix() for place in places]
    return [*FOLDERS, *(name for name in names if _NAMED_FOLDER.fullmatch(name))]


def is_named(path: str) -> bool:
    """Whether the format names a file at this path, relative to the atlas; the atlas's own marks excluded."""
    return place(path) is not None or _NAMED.fullmatch(path) is not None


def is_shared(path: str) -> bool:
    """Whether an atlas on the hub may have the file: no judgements, search index, report or what a run leaves."""
    return place(path) is not None or _OF_READERS.fullmatch(path) is not None


def is_manifest(path: Path) -> bool:
    """Whether a file has the form of an atlas's manifest, whatever the state of the atlas."""
    entry = read_object(path)
    if type(entry.get("schema")) is not int or not isinstance(entry.get("plan_hash"), str):
        return False
    about = [entry.get(name) for name in ("model", "corpus")]
    return isinstance(entry.get("files"), dict) and all(isinstance(one, dict) and "fingerprint" in one for one in about)


def occupancy(directory: Path) -> Occupancy:
    """Whether the folder is free, or holds an unfinished atlas, a finished one (also with a damaged manifest, by its
    seal and a table), or anything else. A working copy alone counts as free: a run killed at its beginning leaves one.
    """
    if not directory.exists():
        return "free"
    if not directory.is_dir():
        return "foreign"
    if (directory / MANIFEST).exists():
        return "finished" if is_manifest(directory / MANIFEST) or _is_sealed(directory) else "foreign"
    if unfinished_plan(directory) is not None:
        return "unfinished"
    if _is_sealed(directory):
        return "finished"
    ours = {LOCK_FILE, RUN} | ({SEAL} if _has_seal(directory) else set()) | ({WORK} if _only_work(directory) else set())
    others = [entry.name for entry in directory.iterdir() if entry.name not in ours]
    return "foreign" if any(not name.endswith(".mnemoscope-tmp") for name in others) else "free"


def clear(directory: Path, *, keep_text: bool = False) -> None:
    """Removes an atlas's own files, but for the working copy of the text if that is kept; annotations and all else
    stay. The marks go last: stopped half-way, the folder is a damaged or unfinished atlas, never a whole one with old
    tables.
    """
    with storing(directory):
        paths = _own_files(directory)
        if not is_manifest(directory / MANIFEST) and _is_sealed(directory):
            # While seal and tables still identify the atlas.
            (directory / MANIFEST).unlink(missing_ok=True)
        _remove(directory, [path for path in paths if not (keep_text and path.startswith(_TEXT))])
        flush(directory)  # or a power cut could bring tables back without their marks
        for name in (RUN, SEAL):
            (directory / name).unlink(missing_ok=True)
        if is_manifest(directory / MANIFEST):
            (directory / MANIFEST).unlink()
        if unfinished_plan(directory) is not None:
            (directory / UNFINISHED).unlink()
        flush(directory)


def remove_work(directory: Path, *, keep_text: bool = False) -> None:
    """Removes a run's working copy, unless the text is kept, and all that it has saved, and half-written files of
    killed processes; nothing else.
    """
    with suppress(OSError, StoreFailed):  # leftovers do no harm
        if not _is_linked(directory, WORK):
            remove_strays(directory / WORK)
        ours = [path for path in _own_files(directory) if path.startswith(f"{WORK}/")]
        _remove(directory, [path for path in ours if not (keep_text and path.startswith(_TEXT))])


def refuse_links(directory: Path) -> None:
    for folder in _folders(directory):
        if (directory / folder).is_symlink():
            raise AtlasDamaged(
                f"{directory / folder} is a symbolic link, and an atlas is not written through one; remove it,"
                " or put the folder itself there"
            )


def _own_files(directory: Path) -> list[str]:
    paths = set(table_files(directory))
    for folder in _folders(directory):
        if not _is_linked(directory, folder) and (directory / folder).is_dir():
            paths |= {f"{folder}/{entry.name}" for entry in (directory / folder).iterdir() if not entry.is_dir()}
    named = {path for path in paths if is_named(path) and not _is_linked(directory, str(PurePosixPath(path).parent))}
    return sorted(named | set(_unnamed_files(directory)))


def _unnamed_files(directory: Path) -> Iterator[str]:
    """Files that a manifest lists and the format does not name, such as those of another version."""
    for manifest in (MANIFEST, *(f"{side}/{MANIFEST}" for side in SIDES)):
        files = read_object(directory / manifest).get("files")
        for path, entry in files.items() if isinstance(files, dict) else ():
            ours = path.split("/")[0] in FOLDERS or path.endswith(".parquet")
            if not ours or not is_file_entry(path, entry) or is_named(path) or _is_linked(directory, path):
                continue
            with suppress(OSError):
                if file_hash(directory / path) == entry["sha256"]:
                    yield path


def _remove(directory: Path, paths: list[str]) -> None:
    folders = set(_folders(directory))
    for path in paths:
        (directory / path).unlink(missing_ok=True)
        folders |= {str(parent) for parent in PurePosixPath(path).parents if parent.name}
    for folder in sorted(folders, key=lambda folder: -folder.count("/")):
        with suppress(OSError):  # not empty, or missing
            (directory / folder).rmdir()


def _is_linked(directory: Path, path: str) -> bool:
    steps = PurePosixPath(path)
    return any((directory / step).is_symlink() for step in (steps, *steps.parents) if step.name)


def _has_seal(directory: Path) -> bool:
    try:
        return re.fullmatch(rb"[0-9a-f]{64}\n", read_regular(directory / SEAL)) is not None
    except OSError:
        return False


def _is_sealed(directory: Path) -> bool:
    """Whether the folder has an atlas's seal, and a table that states its own name."""
    for path in table_files(directory) if _has_seal(directory) else ():
        placed = place(path)
        with suppress(OSError, pa.ArrowException):
            stored = pq.read_schema(directory / path).metadata or {}
            if placed is not None and stored.get(b"mnemoscope.table") == placed[0].name.encode():
                return True
    return False


def _only_work(directory: Path) -> bool:
    """Whether `work` holds a working copy of a text and nothing foreign, or is empty, as a power cut can leave it."""
    if _is_linked(directory, f"{WORK}/text") or not (directory / WORK).is_dir():
        return False
    entries = [entry.relative_to(directory).as_posix() for entry in (directory / WORK).rglob("*")]
    if entries and not (directory / WORK / "text").is_dir():
        return False
    ours = set(_folders(directory))
    return all(is_named(entry) or entry in ours or entry.endswith(".mnemoscope-tmp") for entry in entries)
