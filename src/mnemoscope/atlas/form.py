"""A manifest as typed records, and the form of every entry: the checks that make a JSON object a manifest.

A manifest may come from a stranger; its seal only proves that it was not changed since. The checks run once, before
anything is allocated or looked up, and every reader relies on them. Entries with a default may be missing; entries that
no record has may be anything in JSON and UTF-8. Reads no file.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Annotated, Any, get_args, get_origin

from mnemoscope.atlas.schema import SCHEMA_VERSION, Provenance
from mnemoscope.foundation.files import is_file_entry

MOST = 2**24
"""Most memories of a layer, and most rows of the vocabulary: some sixty times those of the largest models."""
MOST_IN_ALL = 2**28

_MOST_EXPERTS = 2**15
_DEEPEST = 32

_Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Form:
    test: _Test
    words: str
    counts: tuple[str, ...] = ()


def _or_null(test: _Test) -> _Test:
    return lambda value: value is None or test(value)


_NUMBER = Form(lambda value: type(value) in (int, float), "a number")
_COUNT = Form(lambda value: type(value) is int and value >= 0, "a whole number from 0 on")
_ROWS = Form(lambda value: _COUNT.test(value) and 1 <= value <= MOST, f"a whole number from 1 to {MOST:,}")
_SHARE = Form(lambda value: _NUMBER.test(value) and 0 <= value <= 1, "a share from 0 to 1")
_RATIO = Form(lambda value: _NUMBER.test(value) and value >= 0, "a number from 0 on")
_TEXT = Form(lambda value: isinstance(value, str), "text")
_LIST = Form(lambda value: isinstance(value, list), "a list")
_OBJECT = Form(lambda value: isinstance(value, dict), "an object")


def _values(test: _Test) -> _Test:
    return lambda value: _OBJECT.test(value) and all(map(test, value.values()))


def _is_numbering(value: Any) -> bool:
    names = {"routed", "memories", "shared"}
    if not (isinstance(value, dict) and names <= value.keys() and _LIST.test(value["shared"])):
        return False
    sizes = (value["routed"], *value["shared"])
    experts = len(value["shared"]) + (value["routed"] if _COUNT.test(value["routed"]) else 0)
    return _COUNT.test(value["memories"]) and all(map(_ROWS.test, sizes)) and experts <= _MOST_EXPERTS


_SCHEMA = Form(lambda value: type(value) is int and value == SCHEMA_VERSION, str(SCHEMA_VERSION))
_PROOF = Form(_values(_or_null(_NUMBER.test)), "an object of numbers")
_TEXTS = Form(_values(_TEXT.test), "an object of texts")
_PROJECTIONS = Form(
    lambda value: _TEXTS.test(value) and {"values", "votes", "streams"} <= value.keys(),
    "an object of texts of values, votes and streams",
)
_BLOCKS = Form(lambda value: _LIST.test(value) and all(map(_COUNT.test, value)), "a list of whole numbers from 0 on")
_OTHER_BLOCKS = Form(
    lambda value: _TEXTS.test(value) and all(re.fullmatch("[0-9]{1,9}", name) for name in value),
    "an object of texts by the number of a block",
)
_EXCLUDED = Form(
    lambda value: _values(_COUNT.test)(value) and {"length_one", "length_two"} <= value.keys(),
    "an object of length_one and length_two, whole numbers from 0 on",
)
_REMOVALS = Form(lambda value: _COUNT.test(value) or value == "all", 'a whole number, or "all"')
_PLAN = Form(_OBJECT.test, _OBJECT.words, counts=("seed", "triggers"))
_COUNTS = Form(_OBJECT.test, _OBJECT.words, counts=(
    "documents", "sentences", "duplicates", "mined_sentences", "mined_tokens", "held_out_sentences"
))  # fmt: skip
_EXPERTS = Form(
    _or_null(lambda value: _LIST.test(value) and all(each is None or _is_numbering(each) for each in value)),
    'a list of null or an object such as {"routed": 8, "memories": 64, "shared": []} for each layer',
)
_PART = Form(
    lambda value: (
        isinstance(value, dict)
        and all(_COUNT.test(value.get(name)) for name in ("index", "of"))
        and 1 <= value["index"] <= value["of"] <= MOST
    ),
    'an object such as {"index": 1, "of": 2}',
)

Text = Annotated[str, _TEXT]
Name = Annotated[str | None, Form(_or_null(_TEXT.test), "text or null")]


@dataclass(frozen=True)
class SizesRecord:
    """The sizes of the model: memories of every layer, rows of the vocabulary, and others that are only shown."""

    memories: Annotated[Sequence[int], _LIST]
    vocabulary: Annotated[int, _ROWS]
    layers: Annotated[int, _COUNT]
    hidden: Annotated[int, _COUNT]
    context: Annotated[int, _COUNT]
    parameters: Annotated[int, _COUNT]
    ffn_parameters: Annotated[int, _COUNT]
    experts: Annotated[Sequence[Mapping[str, Any] | None] | None, _EXPERTS] = None
    """How the memories of every layer are shared among experts (memory_names.py); null for a dense layer, or model."""


@dataclass(frozen=True)
class BeginningRecord:
    token: Annotated[int | None, Form(_or_null(_COUNT.test), "a whole number from 0 on, or null")]
    kind: Text


@dataclass(frozen=True)
class MinedModel:
    """The model that was mined: its origin (`hub`: its id there, if any) and its properties."""

    fingerprint: Text
    sizes: Annotated[SizesRecord, _OBJECT]
    spec: Text
    hub: Name
    revision: Name
    family: Text
    block: Text
    activation: Text
    gated: bool
    head: Text
    beginning: Annotated[BeginningRecord, _OBJECT]
    proof: Annotated[Mapping[str, float | None], _PROOF]
    layer_blocks: Annotated[Sequence[int], _BLOCKS] = ()
    """The block of every layer, in models that also have blocks without a feed-forward layer; else empty."""
    other_blocks: Annotated[Mapping[str, str], _OTHER_BLOCKS] = field(default_factory=dict)


@dataclass(frozen=True)
class Overlap:
    sentences: Annotated[int, _COUNT]
    of: Annotated[int, _COUNT]
    share: Annotated[float, _RATIO]


@dataclass(frozen=True)
class MinedCorpus:
    fingerprint: Text
    spec: Text
    counts: Annotated[dict[str, Any], _COUNTS]
    held_out_share: Annotated[float, _SHARE]
    overlap: Annotated[Overlap, _OBJECT]


@dataclass(frozen=True)
class Questions:
    """The sizes of the passes for the questions, which a part does not make."""

    prefixes: Annotated[int, _COUNT]
    prefixes_asked: Annotated[int, _COUNT]
    removals_per_layer: Annotated[int | str, _REMOVALS]
    removals_excluded: Annotated[Mapping[str, int], _EXCLUDED]


@dataclass(frozen=True)
class Part:
    index: int
    of: int

    def __str__(self) -> str:
        return f"part {self.index} of {self.of}"


@dataclass(frozen=True, eq=False, repr=False)
class Manifest(Mapping[str, Any]):
    """An atlas's description of itself: typed fields for code, and as a mapping the stored JSON (`document`)."""

    document: Mapping[str, Any]
    model: Annotated[MinedModel, _OBJECT]
    corpus: Annotated[MinedCorpus, _OBJECT]
    plan: Annotated[Mapping[str, Any], _PLAN]
    plan_hash: Text
    layers: Annotated[Sequence[int], _LIST]
    files: Annotated[Mapping[str, Mapping[str, Any]], _OBJECT]
    schema: Annotated[int, _SCHEMA]
    package: Text
    projections: Annotated[Mapping[str, str], _PROJECTIONS]
    out_of_memory_batches: Annotated[Sequence[Any], _LIST]
    part: Annotated[Part | None, _PART] = None
    questions: Annotated[Questions, _OBJECT] = Questions(0, 0, 0, {"length_one": 0, "length_two": 0})

    @staticmethod
    def of(document: Mapping[str, Any]) -> "Manifest":
        made: Manifest = _record(Manifest, {**document, "document": document})
        return made

    def __repr__(self) -> str:
        about = f"{self.model.spec} on {self.corpus.spec}, {len(self.layers)} layers, {len(self.files)} files"
        return f"<Manifest of {about}, schema {self.schema}>"

    @cached_property
    def hashes(self) -> dict[str, str]:
        return {path: entry["sha256"] for path, entry in self.files.items()}

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
def _entries(kind: Any) -> dict[str, tuple[Form, Any]]:
    """The form of each entry of a record, and the entry's own record type or None."""
    forms: dict[str, tuple[Form, Any]] = {}
    for one in fields(kind):
        if get_origin(one.type) is Annotated:
            own, form = get_args(one.type)
            forms[one.name] = form, next((part for part in (own, *get_args(own)) if is_dataclass(part)), None)
    return forms


def _record(kind: Any, document: Mapping[str, Any]) -> Any:
    made = {one.name: document[one.name] for one in fields(kind) if one.name in document}
    for name, (_, record) in _entries(kind).items():
        if record is not None and made.get(name) is not None:
            made[name] = _record(record, made[name])
    return kind(**made)


def form_faults(manifest: dict[str, Any]) -> list[str]:
    """Why a JSON object is no readable manifest, one line per fault."""
    if fault := unwritable(manifest):
        return [fault]
    faults = [*_wrong_entries(Manifest, manifest)]
    if needed := [fault for is_needed, fault in faults if is_needed]:
        return needed[:1]  # faults inside it, or that follow from it, are not listed
    files = sorted(path for path, entry in manifest["files"].items() if not is_file_entry(path, entry))
    unknown = [f"{short(path)}: not an entry that mnemoscope writes" for path in files]
    return [*(fault for _, fault in faults), *_wrong_layers(manifest), *unknown]


def _wrong_entries(kind: Any, document: dict[str, Any], path: str = "") -> Iterator[tuple[bool, str]]:
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    for name, (form, record) in _entries(kind).items():
        value = document.get(name)
        if name not in document:
            if name in needed:
                yield True, f"the manifest has no {path}{name}; the atlas was not written by mnemoscope"
        elif not form.test(value):
            yield name in needed, wrong(path + name, value, form.words)
        elif isinstance(value, dict):
            for inner in form.counts:
                if not _COUNT.test(value.get(inner)):
                    yield False, wrong(f"{path}{name}.{inner}", value.get(inner), _COUNT.words)
            if record is not None:
                yield from _wrong_entries(record, value, f"{path}{name}.")


def _wrong_layers(manifest: dict[str, Any]) -> Iterator[str]:
    memories, layers = manifest["model"]["sizes"]["memories"], manifest["layers"]
    experts = manifest["model"]["sizes"].get("experts")
    in_order = all(map(_COUNT.test, layers)) and layers == sorted(set(layers))
    for layer, count in enumerate(memories):
        if not _ROWS.test(count):
            yield wrong(f"model.sizes.memories[{layer}]", count, _ROWS.words)
            return
    if not memories or sum(memories) > MOST_IN_ALL:
        expected = f"a list of one number per layer, {MOST_IN_ALL:,} in all at most"
        yield wrong("model.sizes.memories", memories, expected)
    elif _EXPERTS.test(experts) and experts is not None and not _fit(experts, memories):
        yield wrong("model.sizes.experts", experts, "one entry per layer whose memories add up to model.sizes.memories")
    elif not layers or not in_order or layers[-1] >= len(memories):
        yield wrong("layers", layers, f"a list of layers from 0 to {len(memories) - 1}, in order")


def _fit(experts: list[dict[str, Any] | None], memories: list[int]) -> bool:
    return len(experts) == len(memories) and all(
        each is None or each["routed"] * each["memories"] + sum(each["shared"]) == count
        for each, count in zip(experts, memories, strict=True)
    )


def unwritable(manifest: dict[str, Any]) -> str | None:
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
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"the manifest holds text under {short(path)} that is not UTF-8"
        elif isinstance(value, float) and not math.isfinite(value):
            return wrong(path, value, "a finite number")
        elif type(value) is int and abs(value) >= 2**63:
            return wrong(path, value, "a number of 64 bits")
    return None


def wrong(path: str, value: Any, expected: str) -> str:
    return f"the manifest's {short(path)} is {short(json.dumps(value, ensure_ascii=False))}, not {expected}"


def short(text: str) -> str:
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= 60 else f"{line[:57]}..."
