"""Manifests of the folders made from a finished atlas: `extensions/`, `analyses/` and `report/`.

The atlas's own manifest never changes after mining, so a manifest in each folder covers its files: the hash of every
file and of the atlas's manifest. That of `analyses/` covers `patterns.parquet`, which can be made again; that of
`extensions/` covers optional tables made later, and fitted lenses.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import polars as pl

from mnemoscope.atlas.form import unwritable
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AtlasBusy, AtlasDamaged
from mnemoscope.foundation.files import file_entry, make_folder, read_object, write_json
from mnemoscope.foundation.origin import restore

if TYPE_CHECKING:
    from mnemoscope.atlas.files import AtlasFiles

Layers = Annotated[
    pl.DataFrame,
    "text +first +second int layer memories +born? +died? +repurposed? +not_asked? +left_out? float +jaccard?"
    " +control_jaccard? +rate_change? +key_cosine? +up_cosine? +value_cosine? +control_key_cosine? +control_up_cosine?"
    " +control_value_cosine? +excess? +universal? +effect? +control_effect?",
]
Changed = Annotated[
    pl.DataFrame,
    "text +first +second memory kind int sign float jaccard? rate_before rate_after"
    " +effect? +halves_effect? texts tokens_before tokens_after",
]
Matches = Annotated[pl.DataFrame, "text memory other? int layer float correlation control excess bool universal"]

Weights = Annotated[pl.DataFrame, "int layer? text module float change? relative? share?"]


def shares_by(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[str | int, float]]:
    """The shares of rows of `Weights` by layer or module, the largest first."""
    sums: dict[str | int, float] = {}
    for row in rows:
        if row[key] is not None and row["share"] is not None:
            sums[row[key]] = sums.get(row[key], 0.0) + row["share"]
    return sorted(sums.items(), key=lambda one: -one[1])


def describe_changes(changes: pl.DataFrame) -> list[str]:
    """The modules, over all layers, and the layers, over all modules, with the largest shares; nothing of no rows."""
    parts = []
    for key, name in (("module", ""), ("layer", "layer ")):
        largest = shares_by(changes.iter_rows(named=True), key)[:3]
        parts.append(", ".join(f"{name}{one} {share:.1%}" for one, share in largest))
    text = f"Weights changed, shares of the sum of squares: {'; '.join(filter(None, parts))}."
    return [] if changes.is_empty() else [text]


class Pair(TypedDict):
    """What changed between two atlases."""

    first: str
    second: str
    note: str | None
    layers: Layers
    changed: Changed
    matches: NotRequired[Matches]
    weights: NotRequired[Weights]


@contextmanager
def write_beside(atlas: "AtlasFiles") -> Iterator[None]:
    """Locks an opened atlas's folder."""
    with lock_folder(atlas.path):
        if atlas.is_replaced():
            raise AtlasBusy(f"{atlas.path} was mined again while it was being read; run the command again")
        yield


def record_hashes(atlas: "AtlasFiles", side: str, paths: Iterable[str]) -> None:
    """Writes the hashes of `paths` (relative to the atlas) into the manifest of the folder `side`.

    Keeps entries of other files that exist and were made from this atlas. The caller holds the lock.
    """
    make_folder(atlas.local(side))
    files = {path: entry for path, entry in atlas.made_later(side).items() if atlas.local(path).is_file()}
    files |= {path: file_entry(atlas.local(path)) for path in paths}
    manifest = {"atlas": atlas.manifest_hash, "files": dict(sorted(files.items()))}
    write_json(atlas.local(f"{side}/{MANIFEST}"), manifest)


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a saved comparison."""
    document = read_object(path)
    pairs = document.get("pairs", [{name: one for name, one in document.items() if name != "made_by"}])
    try:
        if unwritable(document):
            raise TypeError
        return list(restore(Sequence[Pair], pairs))
    except (LookupError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise AtlasDamaged(f"{path}: a saved comparison is damaged ({error!r:.60}); compare again") from error
