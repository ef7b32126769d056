"""The manifest: an atlas's description of itself, and the seal that makes a folder an atlas.

A folder passes through `begin` (unfinished.json holds the plan), the writing of its tables, and `seal` (the hash of the
manifest, then the manifest, last). Reading refuses an atlas that is unfinished, damaged or of another version. What
memories an atlas has is told by the manifest alone, without a library of tables, so a wrong name is refused at once.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.hub.reading import local_file
from mnemoscope.atlas.schema import SCHEMA_VERSION, TABLES, place
from mnemoscope.errors import AtlasDamaged, AtlasNotFound, AtlasTooNew, AtlasUnfinished, MemoryIdError
from mnemoscope.foundation.files import (
    HubPath,
    check_spelling,
    file_entry,
    flush,
    is_file_entry,
    json_bytes,
    read_object,
    read_regular,
    storing,
    write_bytes,
    write_json,
)
from mnemoscope.foundation.formatting import runs
from mnemoscope.foundation.memory_names import MemoryId, Numbering
from mnemoscope.foundation.options.mining_options import RULES, UNRELEASED
from mnemoscope.foundation.options.model_options import NAMED, ModelOptions
from mnemoscope.foundation.origin import package_version

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
RUN = "run.json"
UNFINISHED = "unfinished.json"
STATE = "state"
TEXTS = ("corpus", "validation")
OPENED = ("model", *NAMED, *TEXTS)
"""Entries of a plan that are display names; a `dictionary` is known by its content."""
WORK = "work"
EXTENSIONS = "extensions"
"""The folder whose manifest covers what was made later with the model."""
ANALYSES = "analyses"
"""The folder of answers; its manifest covers patterns, too."""
COMPARISONS = "comparisons"
"""The folder of comparisons with other atlases, and their manifest."""


def begin(directory: Path, *, plan: dict[str, Any]) -> None:
    """Marks the folder as an unfinished atlas; `plan` holds the `plan`, and its `part` or None."""
    write_json(directory / UNFINISHED, plan)


def unfinished_plan(directory: Path) -> dict[str, Any] | None:
    """The `plan` of `begin`; None where no mining is under way, or the file is foreign."""
    if (directory / MANIFEST).is_file():
        return None
    begun = read_object(directory / UNFINISHED)
    return begun if isinstance(begun.get("plan"), dict) and "part" in begun else None


def shared_run_of(directory: Path) -> dict[str, Any]:
    """`unfinished_plan` of a run that workers may join: its `work` is what they share. Raises AtlasNotFound."""
    begun = unfinished_plan(directory)
    if begun is None or not isinstance(begun.get("work"), dict) or not begun["work"]:
        raise AtlasNotFound(f"{directory} holds no run for workers; `mnemoscope mine --prepare` begins one")
    return begun


def plan_of(directory: Path) -> dict[str, Any]:
    """The plan of the atlas in the folder, finished or not, unchecked; empty where there is none."""
    plan = (unfinished_plan(directory) or read_object(local_file(directory, MANIFEST))).get("plan")
    return plan if isinstance(plan, dict) else {}


def mined_from(directory: Path) -> dict[str, str]:
    """The full paths that opened the model and the texts, by their names in the plan; from run.json, which no hash
    covers, or the marks of an unfinished run, else the plan's names.
    """
    paths = (unfinished_plan(directory) or read_object(directory / RUN)).get("paths")
    names = plan_of(directory) | (paths if isinstance(paths, dict) else {})
    return {name: value for name in OPENED if isinstance(value := names.get(name), str)}


def as_mined(directory: Path, name: str, given: str) -> str:
    """The stored path if `given` is the display name of the atlas's `name`; else, or if it exists, `given`."""
    stored, path = plan_of(directory).get(name), os.path.expanduser(given.removeprefix("fairseq:"))
    return given if given != stored or os.path.exists(path) or glob(path) else mined_from(directory)[name]


def open_as_mined(directory: Path, model: str | None, opening: ModelOptions) -> tuple[str, ModelOptions]:
    """The model, by default the one that was mined, and how it is opened."""
    name = None if model is None else as_mined(directory, "model", model)
    # What a stranger's plan names is not opened beside a model that was asked for.
    stored = {} if isinstance(directory, HubPath) else plan_of(directory) | mined_from(directory)
    if name not in (None, stored.get("model")):
        stored.pop("dictionary", None)  # it lies beside the model, wherever that is now
    return str(stored["model"]) if name is None else name, resolve_opening(directory, opening).or_planned(stored)


def resolve_opening(directory: Path, opening: ModelOptions) -> ModelOptions:
    names = {each: str(value) for each in NAMED if (value := getattr(opening, each)) is not None}
    resolved: dict[str, Any] = {each: as_mined(directory, each, value) for each, value in names.items()}
    return replace(opening, **resolved)


def table_files(directory: Path) -> list[str]:
    """Every table file below the folder, relative and sorted, listed in a manifest or not."""
    places = [*directory.glob("*.parquet")]
    for kind in TABLES.values():
        if kind.numbered:
            places += (directory / kind.name).glob("*.parquet")
    names = sorted(path.relative_to(directory).as_posix() for path in places if path.is_file())
    return [path for path in names if place(path) is not None]


def files_beside(directory: Path, side: str, atlas: str) -> dict[str, Any]:
    """The files in the manifest of the folder `side`, relative to the atlas, if it was made from the hash `atlas`."""
    document = read_object(local_file(directory, f"{side}/{MANIFEST}"))
    listed = document.get("files") if document.get("atlas") == atlas else None
    if not isinstance(listed, dict):
        return {}
    return {path: entry for path, entry in listed.items() if is_file_entry(path, entry)}


def seal(directory: Path, manifest: dict[str, Any], *, made: Mapping[str, str] | None = None) -> None:
    """Makes the folder an atlas: adds schema, package version and the hash of every mined table (of those `made`, by
    path, with the hashes that they should have), and writes it last. With a `part` the files of `state/` are covered
    too. Raises AtlasDamaged for a table that is not as it was made.
    """
    covered = [path for path in table_files(directory) if (placed := place(path)) and placed[0].mined]
    covered = covered if made is None else [path for path in covered if path in made]
    if "part" in manifest:
        covered += [path.relative_to(directory).as_posix() for path in (directory / STATE).rglob("*") if path.is_file()]
    files = {path: file_entry(directory / path) for path in sorted(covered)}
    for path in covered if made else ():
        if files[path]["sha256"] != (made or {}).get(path, files[path]["sha256"]):
            raise AtlasDamaged(f"{path} was changed after it was made; run the same command again, which makes it anew")
    whole = {**manifest, "schema": SCHEMA_VERSION, "package": package_version(), "files": files}
    data = json_bytes(whole)
    Manifest.of(whole)
    write_bytes(directory / SEAL, (hashlib.sha256(data).hexdigest() + "\n").encode())
    write_bytes(directory / MANIFEST, data)
    with storing(directory):
        (directory / UNFINISHED).unlink(missing_ok=True)
        flush(directory)


def read_manifest(directory: Path) -> Manifest:
    return read_sealed(directory)[0]


def read_sealed(directory: Path) -> tuple[Manifest, str]:
    """The manifest of a finished atlas (or part), and the sha256 of its bytes."""
    manifest, hash = read_claimed(directory)
    try:
        return Manifest.of(manifest), hash
    except AtlasDamaged as damage:
        raise AtlasDamaged(f"{directory / MANIFEST}: {damage}") from None


def read_claimed(directory: Path) -> tuple[dict[str, Any], str]:
    """Like `read_sealed`, but as stored and of any form: only the seal and the numbers of schema and rules are
    checked.
    """
    check_spelling(directory)
    path, file = directory / MANIFEST, local_file(directory, MANIFEST)
    if not file.is_file():
        _refuse_without_manifest(directory)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise AtlasDamaged(f"{path} cannot be read: {error.strerror}") from error
    manifest = _parse(path, data)
    digest = hashlib.sha256(data).hexdigest()
    schema, plan = manifest.get("schema"), manifest.get("plan")
    rules = plan.get("rules") if isinstance(plan, dict) else RULES
    # Before the hash: another schema may seal differently.
    if type(schema) is int and (schema, rules) != (SCHEMA_VERSION, RULES):
        raise AtlasTooNew(f"{directory} {UNRELEASED} (schema {schema}, rules {rules}; now {SCHEMA_VERSION}, {RULES})")
    try:
        sealed = read_regular(local_file(directory, SEAL))
    except OSError as error:
        raise AtlasDamaged(f"{directory / SEAL} cannot be read: {error.strerror}; mine the atlas again") from error
    if not re.fullmatch(rb"[0-9a-f]{64}\n", sealed):
        raise AtlasDamaged(f"{directory / SEAL} does not hold one sha256 in hex; the atlas was changed after mining")
    if sealed.decode().strip() != digest:
        raise AtlasDamaged(f"{path} is not the file that {SEAL} was written for; the atlas was changed after mining")
    return manifest, digest


def _refuse_without_manifest(directory: Path) -> None:
    if unfinished_plan(directory) is not None:
        raise AtlasUnfinished(
            f"{directory} is not finished: mining was stopped or is under way; run the same `mnemoscope mine` again"
        )
    if (directory / SEAL).is_file():
        raise AtlasDamaged(f"{directory / MANIFEST} is missing; mine the atlas again")
    what = "is not a folder" if directory.exists() and not directory.is_dir() else "does not hold an atlas"
    if not directory.exists() and not isinstance(directory, HubPath):
        what = "does not exist"
    raise AtlasNotFound(f"{directory} {what} (no {MANIFEST}); make one with `mnemoscope mine` or `mnemoscope demo`")


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_refuse_twins)
    except (ValueError, RecursionError) as error:
        raise AtlasDamaged(f"{path} is not JSON ({str(error).splitlines()[0]}); the atlas is damaged") from error
    if not isinstance(value, dict):
        raise AtlasDamaged(f"{path} holds {type(value).__name__}, not an object; the atlas is damaged")
    return value


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two entries of one name every reader would take another."""
    if len(made := dict(pairs)) < len(pairs):
        raise ValueError("two entries of one name")
    return made


class MinedMemories:
    """The memories of the atlas in the folder `path`, by the layers that were mined."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.layers: tuple[int, ...] = tuple(manifest.layers)
        sizes = manifest.model.sizes
        self.numberings = {
            layer: Numbering.of(None if experts is None else vars(experts), sizes.memories[layer])
            for layer, experts in enumerate(sizes.experts or ())
        }
        """By layer, of a model of experts; empty for any other model."""

    @property
    def spec(self) -> str:
        """The name of the model that was mined."""
        return self.manifest.model.spec

    @property
    def fingerprint(self) -> str:
        return self.manifest.model.fingerprint

    def memories(self, layer: int) -> int:
        """The number of memories of a layer; raises MemoryIdError for a layer that was not mined."""
        if layer not in self.layers:
            raise MemoryIdError(f"layer {layer} is not in {self.path}, which has {self.range_text()}")
        return self.manifest.model.sizes.memories[layer]

    def numbering(self, layer: int) -> Numbering:
        """The numbering of a mined layer's memories; raises MemoryIdError."""
        return self.numberings.get(layer, Numbering((self.memories(layer),)))

    def name(self, layer: int, number: int) -> MemoryId:
        """The memory of that number in a layer; experts' memories are counted through."""
        return self.numbering(layer).name(layer, number)

    def number(self, memory: MemoryId) -> int:
        """The number of a memory in its layer; raises MemoryIdError for a memory that the atlas does not have."""
        number = self.numbering(memory.layer).number(memory) if memory.layer in self.layers else None
        if number is None:
            counted = MemoryId(memory.layer, memory.memory) == memory and memory.layer in self.layers
            exists = counted and memory.memory < self.memories(memory.layer)
            meant = f"; in a layer of experts write {self.name(memory.layer, memory.memory)}" if exists else ""
            raise MemoryIdError(f"{memory} is not in {self.path}, which has {self.range_text()}{meant}")
        return number

    def range_text(self) -> str:
        """The atlas's memories in words: `layers 0-3,7 with memories 0-1023`."""
        if self.numberings:
            kinds: dict[str, list[int]] = {}
            for layer in self.layers:
                kinds.setdefault(self.numbering(layer).range_text(), []).append(layer)
            return "; ".join(f"layers {runs(layers)} with {text}" for text, layers in kinds.items())
        counts = sorted({self.memories(layer) for layer in self.layers})
        sizes = " or ".join(f"0-{count - 1}" for count in counts)
        return f"layers {runs(self.layers)} with memories {sizes}"
