"""The manifest: what an atlas says about itself, and the seal that makes a folder an atlas.

A folder passes through `begin` (unfinished.json holds the plan), the writing of its tables, and `seal` (the hash of
the manifest, then the manifest, last). Reading refuses whatever is unfinished, damaged or newer than this package.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from mnemoscope.atlas.form import form_faults
from mnemoscope.atlas.schema import SCHEMA_VERSION, TABLES, Provenance, place
from mnemoscope.errors import AtlasDamaged, AtlasNotFound, AtlasTooNew, AtlasUnfinished
from mnemoscope.files import file_entry, flush, json_bytes, storing, write_bytes, write_json

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
RUN = "run.json"
UNFINISHED = "unfinished.json"
STATE = "state"
WORK = "work"

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model: memories of every layer, rows of the vocabulary; None where an old atlas says nothing."""

    memories: Sequence[int]
    vocabulary: int
    hidden: int | None = None
    context: int | None = None
    parameters: int | None = None
    ffn_parameters: int | None = None


@dataclass(frozen=True)
class MinedModel:
    """The model that was mined: where it is from, what it is, and `beginning`, the kind of its beginning token."""

    fingerprint: str
    sizes: Sizes
    spec: str | None = None
    revision: str | None = None
    family: str | None = None
    block: str | None = None
    activation: str | None = None
    gated: bool = False
    head: str | None = "linear"
    beginning: str | None = None
    proof: Mapping[str, float | None] | None = None


@dataclass(frozen=True)
class Overlap:
    """How many `of` the validation sentences were mined, too."""

    sentences: int
    of: int
    share: float


@dataclass(frozen=True)
class MinedCorpus:
    """The text that was mined; `counts` are those of its documents, sentences and tokens."""

    fingerprint: str
    spec: str | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    held_out_share: float | None = None
    overlap: Overlap | None = None


@dataclass(frozen=True)
class Questions:
    """How much the passes for the questions asked; None where they were not made."""

    prefixes: int | None = None
    prefixes_asked: int | None = None
    removals_per_layer: int | str | None = None
    removals_excluded: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Which of the parts of a plan an atlas is."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"part {self.index} of {self.of}"


@dataclass(frozen=True, eq=False)
class Manifest(Mapping[str, Any]):
    """What an atlas says about itself: typed, what code reads of it; as a mapping, `document`, the JSON as stored.

    Entries that older atlases lack have defaults; which may be missing, form.py says.
    """

    document: Mapping[str, Any] = field(repr=False)
    model: MinedModel
    corpus: MinedCorpus
    plan: Mapping[str, Any]
    plan_hash: str
    layers: Sequence[int]
    hashes: Mapping[str, str]
    """The sha256 of every file that the manifest covers, by its path relative to the atlas."""
    schema: int = SCHEMA_VERSION
    package: str = "unknown"
    part: Part | None = None
    questions: Questions = field(default_factory=Questions)
    projections: Mapping[str, str] = field(default_factory=dict)
    out_of_memory_batches: Sequence[Any] = ()

    @staticmethod
    def of(document: Mapping[str, Any]) -> "Manifest":
        """The manifest that a JSON object without `form_faults` is."""
        model, corpus = document["model"], document["corpus"]
        overlap, beginning = corpus.get("overlap"), model.get("beginning", {})
        return _record(
            Manifest,
            {**document, "document": document},
            model=_record(MinedModel, model, sizes=_record(Sizes, model["sizes"]), beginning=beginning.get("kind")),
            corpus=_record(MinedCorpus, corpus, overlap=None if overlap is None else _record(Overlap, overlap)),
            hashes={path: entry["sha256"] for path, entry in document["files"].items()},
            part=_record(Part, document["part"]) if "part" in document else None,
            questions=_record(Questions, document.get("questions", {})),
        )

    @property
    def provenance(self) -> Provenance:
        """What every table of the atlas must say about its origin."""
        return Provenance(model=self.model.fingerprint, corpus=self.corpus.fingerprint, plan=self.plan_hash)

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)


def _record(kind: type[T], document: Mapping[str, Any], **made: Any) -> T:
    """A dataclass of those entries of `document` that it has fields for; `made` are fields that are not as stored."""
    known = {one.name: document[one.name] for one in fields(kind) if one.name in document}  # type: ignore[arg-type]
    return kind(**known | made)


def begin(directory: Path, *, plan: dict[str, Any]) -> None:
    """Marks the folder as an unfinished atlas: `plan` holds the `plan`, and the `part` of it or None."""
    write_json(directory / UNFINISHED, plan)


def unfinished_plan(directory: Path) -> dict[str, Any] | None:
    """What `begin` was given, or None where no mining is under way, or only a file of somebody else bears that name."""
    if (directory / MANIFEST).is_file():
        return None
    try:
        begun = _parse(directory / UNFINISHED, _read(directory / UNFINISHED))
    except AtlasDamaged:
        return None
    return begun if isinstance(begun.get("plan"), dict) and "part" in begun else None


def table_files(directory: Path) -> list[str]:
    """Every table file below the folder, relative and sorted, whether a manifest lists it or not."""
    places = [*directory.glob("*.parquet")]
    for kind in TABLES.values():
        if kind.numbered:
            places += (directory / kind.name).glob("*.parquet")
    found = sorted(path.relative_to(directory).as_posix() for path in places if path.is_file())
    return [path for path in found if place(path) is not None]


def seal(directory: Path, manifest: dict[str, Any]) -> None:
    """Makes the folder an atlas: adds schema, package version and the hash of every mined table, and writes it last.

    `manifest` must have the form of one (AtlasDamaged), but for what is added; with `part` = {"index": I, "of": N} the
    files of `state/` are covered too. Numbers that are not finite: ValueError.
    """
    covered = [path for path in table_files(directory) if (found := place(path)) and found[0].mined]
    if "part" in manifest:
        covered += [path.relative_to(directory).as_posix() for path in (directory / STATE).rglob("*") if path.is_file()]
    files = {path: file_entry(directory / path) for path in sorted(covered)}
    whole = {**manifest, "schema": SCHEMA_VERSION, "package": _package_version(), "files": files}
    data = json_bytes(whole)
    if faults := form_faults(whole):
        raise AtlasDamaged(faults[0])
    write_bytes(directory / SEAL, (hashlib.sha256(data).hexdigest() + "\n").encode())
    write_bytes(directory / MANIFEST, data)
    with storing(directory):
        (directory / UNFINISHED).unlink(missing_ok=True)
        flush(directory)


def _package_version() -> str:
    try:
        return version("mnemoscope")
    except PackageNotFoundError:
        return "unknown"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a finished atlas (or part); raises what `read_sealed` raises."""
    return read_sealed(directory)[0]


def read_sealed(directory: Path) -> tuple[Manifest, str]:
    """The manifest of a finished atlas (or part), and the sha256 of the very bytes that were read.

    Raises AtlasNotFound, AtlasUnfinished, AtlasTooNew, or AtlasDamaged when it is not what manifest.sha256 says, or
    has not the form of a manifest.
    """
    manifest, hash = read_claimed(directory)
    if faults := form_faults(manifest):
        raise AtlasDamaged(f"{directory / MANIFEST}: {faults[0]}")
    return Manifest.of(manifest), hash


def read_claimed(directory: Path) -> tuple[dict[str, Any], str]:
    """As `read_sealed`, but as stored and of any form: sealed, and of this schema."""
    path = directory / MANIFEST
    if not path.is_file():
        _refuse_without_manifest(directory)
    data = _read(path)
    manifest = _parse(path, data)
    found = hashlib.sha256(data).hexdigest()
    schema = manifest.get("schema")
    # Before the hash: a newer schema may seal differently.
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise AtlasTooNew(
            f"{directory} has atlas schema {schema}, this package reads up to {SCHEMA_VERSION}; update mnemoscope"
        )
    try:
        said = (directory / SEAL).read_bytes()
    except OSError as error:
        raise AtlasDamaged(f"{directory / SEAL} cannot be read: {error.strerror}; mine the atlas again") from error
    if not re.fullmatch(rb"[0-9a-f]{64}\n", said):
        raise AtlasDamaged(f"{directory / SEAL} does not hold one sha256 in hex; the atlas was changed after mining")
    if said.decode().strip() != found:
        raise AtlasDamaged(f"{path} is not the file that {SEAL} was written for; the atlas was changed after mining")
    if type(schema) is not int or schema != SCHEMA_VERSION:
        raise AtlasDamaged(f"{path}: schema is {schema!r}, expected {SCHEMA_VERSION}; mine the atlas again")
    return manifest, found


def _refuse_without_manifest(directory: Path) -> None:
    if unfinished_plan(directory) is not None:
        raise AtlasUnfinished(
            f"{directory} is not finished: mining was stopped or is under way; run the same `mnemoscope mine` again"
        )
    if (directory / SEAL).is_file():
        raise AtlasDamaged(f"{directory / MANIFEST} is missing; mine the atlas again")
    what = "is not a folder" if directory.exists() and not directory.is_dir() else "does not hold an atlas"
    if not directory.exists():
        what = "does not exist"
    raise AtlasNotFound(f"{directory} {what} (no {MANIFEST}); make one with `mnemoscope mine` or `mnemoscope demo`")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AtlasDamaged(f"{path} cannot be read: {error.strerror}") from error


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object that `path` holds; raises AtlasDamaged."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AtlasDamaged(f"{path} is not JSON ({str(error).splitlines()[0]}); the atlas is damaged") from error
    if not isinstance(value, dict):
        raise AtlasDamaged(f"{path} holds {type(value).__name__}, not an object; the atlas is damaged")
    return value
