"""A finished atlas, opened for reading: its manifest, its tables, and its memories by name.

Opening reads the manifest only. Nothing is guessed: an unfinished, damaged or newer atlas is refused, and so is a
table that does not belong to it. Needs no torch and never writes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mnemoscope.atlas.manifest import read_sealed
from mnemoscope.atlas.one_memory import Memory
from mnemoscope.atlas.tables import Tables
from mnemoscope.errors import AtlasDamaged, MemoryIdError, OptionError
from mnemoscope.memory import MemoryId


def open_atlas(path: str | Path) -> "Atlas":
    """The atlas in the folder `path`.

    Raises AtlasNotFound, AtlasUnfinished, AtlasTooNew or AtlasDamaged. A part (`mine --part I/N`) opens too, but has
    no values or neighbours: asking for them raises AtlasUnfinished.
    """
    directory = Path(path)
    return Atlas(directory, *read_sealed(directory))


class Atlas:
    """One atlas: `atlas["L10.M222"]` is a memory, `atlas.table("triggers", layer=10)` a table.

    `manifest` has the form of one (form.py). `manifest_hash` is the sha256 of the manifest that was opened, whatever
    lies in the folder since.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], manifest_hash: str) -> None:
        self.path = path
        self.manifest = manifest
        self.manifest_hash = manifest_hash
        self.tables = Tables(path, manifest)
        self.layers: tuple[int, ...] = tuple(manifest["layers"])
        self._memories: tuple[int, ...] = tuple(manifest["model"]["sizes"]["memories"])
        self._vocabulary: tuple[pl.Series, pl.Series] | None = None

    def __repr__(self) -> str:
        return f"<Atlas {self.path}: {self.range_text()}>"

    def memories(self, layer: int) -> int:
        """How many memories the layer has; raises MemoryIdError for a layer that was not mined."""
        if layer not in self.layers:
            raise MemoryIdError(f"layer {layer} is not in {self.path}, which has {self.range_text()}")
        return self._memories[layer]

    def range_text(self) -> str:
        """The memories that the atlas has, in words: `layers 0-3,7 with memories 0-1023`."""
        counts = sorted({self._memories[layer] for layer in self.layers})
        sizes = " or ".join(f"0-{count - 1}" for count in counts)
        return f"layers {_runs(self.layers)} with memories {sizes}"

    def __getitem__(self, memory: str | MemoryId) -> Memory:
        """One memory; raises MemoryIdError for what is not a memory's name, or of none that the atlas has."""
        named = MemoryId.parse(memory) if isinstance(memory, str) else memory
        if named.layer not in self.layers or named.memory >= self._memories[named.layer] or named.expert is not None:
            raise MemoryIdError(f"{named} is not in {self.path}, which has {self.range_text()}")
        return Memory(self, named)

    def table(self, name: str, *, layer: int | None = None) -> pl.DataFrame:
        """All rows of a table, such as `triggers` (one file per layer) or `tokens`.

        Raises OptionError for a table that cannot be, AtlasUnfinished for one not made, AtlasDamaged.
        """
        return self.tables.whole(name, layer)

    def scan(self, name: str, *, layer: int | None = None) -> pl.LazyFrame:
        """The table as a polars query that reads only what it needs; raises like `table`, pages unchecked."""
        return pl.scan_parquet([self.path / path for path in self.tables.paths(name, layer)])

    def sentences(self, ids: Sequence[int], *, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The stored sentences with these ids, in order of id, each once; raises AtlasDamaged if one is not stored."""
        found = self.tables.having("sentences", column="sentence", ids=ids, columns=columns)
        if found.height != len(set(ids)):
            missing = sorted(set(ids) - set(found["sentence"].to_list()))
            raise AtlasDamaged(f"{self.path}: sentence {missing[0]} is named by a table but not stored")
        return found

    def token_text(self, ids: Sequence[int | None]) -> list[str | None]:
        """The readable text of each token, as it appears in running text; None for None."""
        texts, _ = self._words()
        return self._taken(texts, ids)

    def token_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes that these tokens stand for, joined."""
        _, raw = self._words()
        return b"".join(self._taken(raw, ids))

    def _taken(self, column: pl.Series, ids: Sequence[int | None]) -> list[Any]:
        outside = [id for id in ids if id is not None and not 0 <= id < len(column)]
        if outside:
            raise OptionError(f"token {outside[0]} is not in {self.path}, which has tokens 0-{len(column) - 1}")
        return column.gather(pl.Series(ids, dtype=pl.UInt32)).to_list()

    def _words(self) -> tuple[pl.Series, pl.Series]:
        """Text and bytes of every token, by token."""
        if self._vocabulary is None:
            rows = self.tables.whole("vocabulary")
            if rows["token"].to_list() != list(range(rows.height)):
                raise AtlasDamaged(f"{self.path}/vocabulary.parquet does not list the tokens in order")
            self._vocabulary = rows["text"], rows["bytes"]
        return self._vocabulary


def _runs(numbers: Sequence[int]) -> str:
    """Sorted numbers as runs: 0, 1, 2, 5 -> `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
