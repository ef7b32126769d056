"""A manifest as typed records, whose annotations are the form that pydantic checks.

A manifest may come from a stranger; its seal only proves that it was not changed since. `Manifest.of` checks it once,
before anything is allocated or looked up, and every reader relies on it. Entries with a default may be missing; entries
that no record has may be anything in JSON and UTF-8. Reads no file.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from mnemoscope.atlas.schema import SCHEMA_VERSION, Provenance
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.files import is_file_entry
from mnemoscope.foundation.reading import Reading

MOST = 2**24
"""Most memories of a layer, and most rows of the vocabulary: some sixty times those of the largest models."""
MOST_IN_ALL = 2**28

COUNTED = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens", "held_out_sentences")

_MOST_EXPERTS = 2**15
_DEEPEST = 32


def _holding(kind: type, *names: str) -> AfterValidator:
    def check(value: dict[str, Any]) -> dict[str, Any]:
        for name in names:
            if type(value.get(name)) is not kind or (kind is int and value[name] < 0):
                what = "text" if kind is str else "a whole number from 0 on"
                raise ValueError(f"{name} should be {what}")
        return value

    return AfterValidator(check)


def _check_files(files: Mapping[str, Any]) -> Mapping[str, Any]:
    for path, entry in files.items():
        if not is_file_entry(path, entry):
            raise ValueError(f"{_short(path)} is no file of an atlas")
    return files


Text = Annotated[str, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Rows = Annotated[int, Field(strict=True, ge=1, le=MOST)]


@dataclass(frozen=True)
class ExpertsRecord:
    """How the memories of a layer are shared among its experts (memory_names.py)."""

    routed: Annotated[Rows, Field(le=_MOST_EXPERTS)]
    memories: Count
    shared: list[Rows]


@dataclass(frozen=True)
class SizesRecord:
    """The sizes of the model: memories of every layer, rows of the vocabulary, and others that are only shown."""

    memories: Annotated[list[Rows], Field(min_length=1)]
    vocabulary: Rows
    layers: Count
    hidden: Count
    context: Count
    parameters: Count
    ffn_parameters: Count
    experts: list[ExpertsRecord | None] | None = None
    """Null for a dense layer, or model."""


@dataclass(frozen=True)
class BeginningRecord:
    token: Count | None
    kind: Text


@dataclass(frozen=True)
class MinedModel:
    """The model that was mined: its origin (`hub`: its id there, if any) and its properties."""

    fingerprint: Text
    sizes: SizesRecord
    spec: Text
    hub: Text | None
    revision: Text | None
    family: Text
    block: Text
    activation: Text
    gated: Flag
    head: Text
    beginning: BeginningRecord
    reading: Reading
    proof: dict[str, Number | None]
    layer_blocks: Sequence[Count] = ()
    """The block of every layer, in models that also have blocks without a feed-forward layer; else empty."""
    other_blocks: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Text] = field(default_factory=dict)


@dataclass(frozen=True)
class Overlap:
    sentences: Count
    of: Count
    share: Annotated[Number, Field(ge=0)]


@dataclass(frozen=True)
class MinedCorpus:
    fingerprint: Text
    spec: Text
    counts: Annotated[dict[str, Any], _holding(int, *COUNTED)]
    held_out_share: Annotated[Number, Field(ge=0, le=1)]
    overlap: Overlap


@dataclass(frozen=True)
class Questions:
    """The sizes of the passes for the questions, which a part does not make."""

    prefixes: Count
    prefixes_asked: Count
    removals_per_layer: Count | Literal["all"]
    removals_excluded: Annotated[dict[str, Count], _holding(int, "length_one", "length_two")]
    linearised_agrees: Count | None = None
    """Of a head with a transform: the prefixes at which its linear part ranks the model's own prediction first."""


@dataclass(frozen=True)
class Part:
    index: Rows
    of: Rows

    def __str__(self) -> str:
        return f"part {self.index} of {self.of}"


@dataclass(frozen=True, eq=False, repr=False)
class Manifest(Mapping[str, Any]):
    """An atlas's description of itself: typed fields for code, and as a mapping the stored JSON (`document`)."""

    document: Mapping[str, Any]
    model: MinedModel
    corpus: MinedCorpus
    plan: Annotated[dict[str, Any], _holding(int, "seed", "triggers")]
    plan_hash: Text
    layers: Annotated[list[Count], Field(min_length=1)]
    files: Annotated[dict[str, Any], AfterValidator(_check_files)]
    schema: Annotated[int, Field(strict=True, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    package: Text
    projections: Annotated[dict[str, Text], _holding(str, "values", "votes", "streams")]
    out_of_memory_batches: list[Any]
    part: Part | None = None
    questions: Questions = Questions(0, 0, 0, {"length_one": 0, "length_two": 0})

    @staticmethod
    def of(document: Mapping[str, Any]) -> "Manifest":
        """The manifest in a JSON object."""
        if fault := unwritable(document):
            raise AtlasDamaged(fault)
        try:
            manifest = _form().validate_python({**document, "document": document})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise AtlasDamaged(
                _fault(".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, "))
            ) from None
        if fault := _disagreement(manifest):
            raise AtlasDamaged(fault)
        return manifest

    def __repr__(self) -> str:
        about = f"{self.model.spec} on {self.corpus.spec}, {len(self.layers)} layers, {len(self.files)} files"
        return f"<Manifest of {about}, schema {self.schema}>"

    @cached_property
    def hashes(self) -> dict[str, str]:
        return {path: entry["sha256"] for path, entry in self.files.items()}

    @property
    def keys_only(self) -> bool:
        """Whether an encoder alone was mined, which has no values."""
        return self.model.head == "none"

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.model.fingerprint, self.corpus.fingerprint, self.plan_hash)

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)


@cache
def _form() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def _disagreement(manifest: Manifest) -> str | None:
    """What two entries of the right form say against one another."""
    sizes, layers, part = manifest.model.sizes, manifest.layers, manifest.part
    if sum(sizes.memories) > MOST_IN_ALL:
        return _fault("model.sizes.memories", f"they should be {MOST_IN_ALL} in all at most")
    if sizes.experts is not None:
        counts = [
            count if one is None else one.routed * one.memories + sum(one.shared)
            for one, count in zip(sizes.experts, sizes.memories, strict=False)
        ]
        if len(sizes.experts) != len(counts) or counts != sizes.memories:
            return _fault("model.sizes.experts", "their memories should add up to model.sizes.memories")
        if any(one is not None and one.routed + len(one.shared) > _MOST_EXPERTS for one in sizes.experts):
            return _fault("model.sizes.experts", f"a layer should have {_MOST_EXPERTS} at most")
    if layers != sorted(set(layers)) or layers[-1] >= len(sizes.memories):
        return _fault("layers", f"they should be from 0 to {len(sizes.memories) - 1}, in order")
    if part is not None and part.index > part.of:
        return _fault("part", "index should be at most of")
    return None


def unwritable(manifest: Mapping[str, Any]) -> str | None:
    """The fault of values that no manifest of ours holds: not finite, too long, not UTF-8, too deep; else None."""
    waiting: list[tuple[str, Any, int]] = [("", manifest, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > _DEEPEST:
            return f"the manifest is nested more than {_DEEPEST} deep"
        if isinstance(value, dict):
            waiting += [(path, key, depth) for key in value]
            waiting += [(f"{path}.{key}".lstrip("."), part, depth + 1) for key, part in value.items()]
        elif isinstance(value, list):
            waiting += [(path, part, depth + 1) for part in value]
        elif isinstance(value, str) and not value.isascii() and value != value.encode(errors="replace").decode():
            return _fault(path, "Input should be UTF-8")
        elif isinstance(value, float) and not math.isfinite(value):
            return _fault(path, "Input should be a finite number")
        elif type(value) is int and abs(value) >= 2**63:
            return _fault(path, "Input should be a number of 64 bits")
    return None


def _fault(place: str, message: str) -> str:
    return f"the manifest's {_short(place)}: {message}"


def _short(text: str) -> str:
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= 60 else f"{line[:57]}..."
