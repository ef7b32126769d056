"""The form of a manifest: which entries it must have, of which type and size.

A manifest may be a stranger's, and its seal only says that nobody changed it since. What is checked here once, before
anything is allocated or looked up, every reader may believe. Entries that no reader relies on may be missing (older
atlases lack some) and may be anything that JSON and UTF-8 can hold. Reads no file.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

MOST = 2**24
"""Memories of a layer, and rows of the vocabulary: some sixty times what the largest models have."""
MOST_IN_ALL = 2**28
"""Memories of a model."""

_DEEPEST = 32
_LONGEST_PATH = 255

_Test = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _or_null(test: _Test) -> _Test:
    return lambda value: value is None or test(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _values(test: _Test) -> _Test:
    return lambda value: isinstance(value, dict) and all(map(test, value.values()))


_OBJECT: tuple[_Test, str] = (lambda value: isinstance(value, dict), "an object")
_LIST: tuple[_Test, str] = (lambda value: isinstance(value, list), "a list")
_TEXT: tuple[_Test, str] = (_is_text, "text")
_NAME: tuple[_Test, str] = (_or_null(_is_text), "text or null")
_COUNT: tuple[_Test, str] = (_is_count, "a whole number from 0 on")
_SIZE: tuple[_Test, str] = (_or_null(_is_count), "a whole number from 0 on, or null")
_SHARE: tuple[_Test, str] = (lambda value: _is_number(value) and 0 <= value <= 1, "a share from 0 to 1")

_NEEDED: dict[str, tuple[_Test, str]] = {
    "model": _OBJECT,
    "model.fingerprint": _TEXT,
    "model.sizes": _OBJECT,
    "model.sizes.memories": _LIST,
    "model.sizes.vocabulary": (
        lambda value: _is_count(value) and 1 <= value <= MOST,
        f"a whole number from 1 to {MOST:,}",
    ),
    "corpus": _OBJECT,
    "corpus.fingerprint": _TEXT,
    "plan": _OBJECT,
    "plan_hash": _TEXT,
    "layers": _LIST,
    "files": _OBJECT,
}
"""The entries that every manifest has, outer ones first."""

_COUNTS = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens", "held_out_sentences")
_KNOWN: dict[str, tuple[_Test, str]] = {
    "package": _TEXT,
    **{f"model.{name}": _NAME for name in ("spec", "revision", "family", "block", "activation", "head")},
    **{f"model.sizes.{name}": _SIZE for name in ("layers", "hidden", "context", "parameters", "ffn_parameters")},
    "model.beginning": _OBJECT,
    "model.beginning.token": _SIZE,
    "model.beginning.kind": _TEXT,
    "model.proof": (_or_null(_values(_or_null(_is_number))), "an object of numbers"),
    "corpus.spec": _NAME,
    "corpus.counts": _OBJECT,
    **{f"corpus.counts.{name}": _COUNT for name in _COUNTS},
    "corpus.held_out_share": _SHARE,
    "corpus.overlap": (
        lambda value: value is None or (isinstance(value, dict) and {"sentences", "of", "share"} <= value.keys()),
        "an object of sentences, of and share",
    ),
    "corpus.overlap.sentences": _COUNT,
    "corpus.overlap.of": _COUNT,
    "corpus.overlap.share": (lambda value: _is_number(value) and value >= 0, "a number from 0 on"),
    "plan.seed": _COUNT,
    "plan.triggers": _COUNT,
    "projections": (_values(_is_text), "an object of texts"),
    "out_of_memory_batches": _LIST,
    "questions": _OBJECT,
    "questions.prefixes": _COUNT,
    "questions.prefixes_asked": _COUNT,
    "questions.removals_per_layer": (lambda value: _is_count(value) or value == "all", 'a whole number, or "all"'),
    "questions.removals_excluded": (_values(_is_count), "an object of whole numbers from 0 on"),
    "part": (
        lambda value: (
            isinstance(value, dict)
            and all(_is_count(value.get(name)) for name in ("index", "of"))
            and 1 <= value["index"] <= value["of"] <= MOST
        ),
        'an object such as {"index": 1, "of": 2}',
    ),
}
"""Entries that readers use where they are there."""


def form_faults(manifest: dict[str, Any]) -> list[str]:
    """What keeps a JSON object from being a manifest that can be read, one line each; empty where nothing does."""
    if fault := _unwritable(manifest):
        return [fault]
    found = []
    for path, (test, expected) in _NEEDED.items():
        there, value = _entry(manifest, path)
        if not there:
            # What is inside a missing object is not missing again.
            return [f"the manifest has no {path}; the atlas was not written by mnemoscope"]
        if not test(value):
            return [_wrong(path, value, expected)]
    for path, (test, expected) in _KNOWN.items():
        there, value = _entry(manifest, path)
        if there and not test(value):
            found.append(_wrong(path, value, expected))
    return [*found, *_wrong_layers(manifest), *_wrong_files(manifest["files"])]


def _wrong_layers(manifest: dict[str, Any]) -> Iterator[str]:
    """Layers without a possible number of memories, and mined layers that the model does not have."""
    memories, layers = manifest["model"]["sizes"]["memories"], manifest["layers"]
    for layer, count in enumerate(memories):
        if not (_is_count(count) and 1 <= count <= MOST):
            yield _wrong(f"model.sizes.memories[{layer}]", count, f"a whole number from 1 to {MOST:,}")
            return
    if not memories or sum(memories) > MOST_IN_ALL:
        expected = f"a list of one number per layer, {MOST_IN_ALL:,} in all at most"
        yield _wrong("model.sizes.memories", memories, expected)
    elif not layers or not all(map(_is_count, layers)) or layers != sorted(set(layers)) or layers[-1] >= len(memories):
        yield _wrong("layers", layers, f"a list of layers from 0 to {len(memories) - 1}, in order")


def _wrong_files(files: dict[str, Any]) -> Iterator[str]:
    for path, said in sorted(files.items()):
        parts = PurePosixPath(path)
        inside = path and not parts.is_absolute() and ".." not in parts.parts and "\0" not in path
        sound = (
            isinstance(said, dict)
            and _is_count(said.get("bytes", 0))
            and isinstance(said.get("sha256"), str)
            and re.fullmatch(r"[0-9a-f]{64}", said["sha256"]) is not None
        )
        if not inside or len(path) > _LONGEST_PATH or not sound:
            yield f"{_short(path)}: not an entry that mnemoscope writes"


def _entry(manifest: dict[str, Any], path: str) -> tuple[bool, Any]:
    """Whether there is an entry at a dotted path, and what it holds."""
    value: Any = manifest
    for step in path.split("."):
        if not isinstance(value, dict) or step not in value:
            return False, None
        value = value[step]
    return True, value


def _unwritable(manifest: dict[str, Any]) -> str | None:
    """What no manifest of ours holds anywhere: numbers that are not finite or too long, text that is no UTF-8."""
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
                return f"the manifest holds text under {_short(path)} that is not UTF-8"
        elif isinstance(value, float) and not math.isfinite(value):
            return _wrong(path, value, "a finite number")
        elif type(value) is int and abs(value) >= 2**63:
            return _wrong(path, value, "a number of 64 bits")
    return None


def _wrong(path: str, value: Any, expected: str) -> str:
    return f"the manifest's {_short(path)} is {_short(json.dumps(value, ensure_ascii=False))}, not {expected}"


def _short(text: str) -> str:
    """At most 60 characters of a text, in one line and without what UTF-8 cannot hold."""
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= 60 else f"{line[:57]}..."
