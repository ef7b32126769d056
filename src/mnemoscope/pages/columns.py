"""The tables that many pages need, kept in memory: values, activity, patterns, the vocabulary, and who fires where.

For a model of GPT-2's size these are some 100 MB; triggers and sentences, which are larger, are read for each page.
Kept by the edition, so that they are read once and again only when the atlas's folder changes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.visible import in_token
from mnemoscope.errors import AtlasDamaged
from mnemoscope.pages.edition import Edition

_SPAN = 1 << 24
"""More than any layer has memories, and any sentence positions."""


@dataclass(frozen=True)
class Words:
    """The vocabulary: texts as in running text, and the bytes that tokens stand for."""

    texts: list[str]
    raw: list[bytes]

    def text(self, tokens: list[int]) -> str:
        """The tokens as text; bytes that are no whole character become replacement marks."""
        return b"".join(self.raw[token] for token in tokens).decode("utf-8", "replace")

    def shown(self, token: int) -> str:
        """The token with white space visible, and as bytes, such as <E2 80>, where it is part of a character."""
        text = self.texts[token]
        if "\ufffd" in text and self.raw[token]:
            try:
                self.raw[token].decode()
            except UnicodeDecodeError:
                return f"\u27e8{self.raw[token].hex(' ').upper()}\u27e9"
        return in_token(text)

    def token(self, token: int) -> dict[str, Any]:
        """The token as data: its id, its text, and how it is shown."""
        return {"token": token, "text": self.texts[token], "shown": self.shown(token)}


def words(edition: Edition) -> Words:
    """The vocabulary of the atlas."""

    def make() -> Words:
        rows = edition.atlas.table("vocabulary")
        # Asked for by their ids, they are checked to be in order.
        return Words([text or "" for text in edition.atlas.token_text(range(rows.height))], rows["bytes"].to_list())

    return edition.tables.get("words", make)


def table(edition: Edition, name: str, *, layer: int) -> pl.DataFrame:
    """The rows of `values` or `activity` of one layer, by memory."""
    return edition.tables.get((name, layer), lambda: edition.atlas.table(name, layer=layer).sort("memory"))


def row(edition: Edition, name: str, *, layer: int, memory: int) -> dict[str, Any]:
    """The one row of a memory in `values` or `activity`."""
    rows = table(edition, name, layer=layer)
    found = rows.row(memory, named=True) if memory < rows.height else None
    if found is None or found["memory"] != memory:
        raise AtlasDamaged(f"{edition.atlas.path}: table {name} does not have one row for each memory of layer {layer}")
    return found


def top_token(edition: Edition, layer: int, *, memory: int) -> int:
    """The token that the value ranks first."""
    tops = edition.tables.get(
        ("tops", layer), lambda: table(edition, "values", layer=layer)["top_tokens"].list.first().to_numpy()
    )
    return int(tops[memory])


@dataclass(frozen=True)
class _Patterns:
    rows: pl.DataFrame
    places: Any


def patterns(edition: Edition, layer: int, *, memory: int) -> list[dict[str, Any]] | None:
    """The memory's patterns in their order; None where patterns were not made."""
    if not (edition.atlas.path / TABLES["patterns"].path()).is_file():
        return None

    def make() -> _Patterns:
        rows = edition.atlas.table("patterns").sort("layer", "memory", "pattern")
        return _Patterns(rows, rows["layer"].to_numpy().astype(np.int64) * _SPAN + rows["memory"].to_numpy())

    found = edition.tables.get("patterns", make)
    first, last = np.searchsorted(found.places, [layer * _SPAN + memory, layer * _SPAN + memory + 1])
    return found.rows.slice(int(first), int(last - first)).to_dicts()


@dataclass(frozen=True)
class _Places:
    """All positive triggers, sorted by prefix: sentence and position as one number, and the memory as another."""

    prefixes: Any
    memories: Any


def sharing(edition: Edition, prefixes: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """How many of these prefixes (sentence, position) are positive triggers of each (layer, memory)."""
    found = edition.tables.get("places", lambda: _places(edition))
    asked = np.array([sentence * _SPAN + position for sentence, position in prefixes], dtype=np.int64)
    first, last = np.searchsorted(found.prefixes, asked, "left"), np.searchsorted(found.prefixes, asked, "right")
    pieces = [found.memories[start:end] for start, end in zip(first, last, strict=True)]
    names, counts = np.unique(np.concatenate(pieces) if pieces else found.memories[:0], return_counts=True)
    return {(int(name) // _SPAN, int(name) % _SPAN): int(count) for name, count in zip(names, counts, strict=True)}


def _places(edition: Edition) -> _Places:
    prefixes, memories = [], []
    for layer in edition.atlas.layers:
        rows = edition.atlas.table("triggers", layer=layer).filter(pl.col("sign") == 1)
        prefixes.append(rows["sentence"].to_numpy().astype(np.int64) * _SPAN + rows["position"].to_numpy())
        memories.append(layer * _SPAN + rows["memory"].to_numpy().astype(np.int64))
    whole = np.concatenate(prefixes)
    order = np.argsort(whole, kind="stable")
    return _Places(whole[order], np.concatenate(memories)[order])
