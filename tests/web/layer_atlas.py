"""Atlases of one or two layers with as many memories as a test lays out, one row each. Not a test itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnemoscope.atlas.manifest import MANIFEST, seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from support.handbuilt_answers import Trigger, Value, build_answers, write_patterns
from support.handbuilt_atlas import PROVENANCE, manifest

PREFIXES = 100
WORDS = {3: "<script>window.ran=3</script>", 6: '"><img src=x onerror="window.ran=6">', 9: "{{ 7 * 191 }}<!--"}
"""Tokens as a corpus may hold them."""

Row = tuple[int, int, int | None, float, float, str]
"""Prefixes at which it fires (of 100), top token, target, largest probability, norm, kind of pattern (or `none`)."""


def layered(directory: Path, rows: Sequence[Row], *, patterns: bool = True, striking: bool = False) -> Path:
    """A sealed atlas whose two layers have these memories; layer 1 in the reverse order.

    Every memory has a trigger; with `striking` L0.M0 has six, and what it says follows all of them.
    """
    layers = {0: list(rows), 1: list(reversed(rows))}
    values = {layer: [_value(row) for row in own] for layer, own in layers.items()}
    triggers: dict[int, list[Trigger]] = {layer: [(memory, 1) for memory in range(len(rows))] for layer in layers}
    if striking:
        triggers[0][:1] = [(0, rows[0][1])] * 6
    words = {0: "<|end|>", 1: " the", 2: "The", 4: "\n"} | WORDS
    build_answers(
        directory,
        memories=len(rows),
        values=values,
        triggers=triggers,
        words=words,
        patterns=None,
        prefixes=[(document, 1, 1, 1) for document in range(6)],
    )
    for layer, own in layers.items():
        columns = activity([fires for fires, *_ in own])
        write_table(directory / TABLES["activity"].path(layer), columns, name="activity", provenance=PROVENANCE)
    sizes = {"layers": 2, "memories": [len(rows)] * 2, "vocabulary": 20}
    model = {"spec": "<b>handbuilt</b>", "revision": None, "fingerprint": PROVENANCE.model, "sizes": sizes}
    for name in (MANIFEST, "manifest.sha256"):
        (directory / name).unlink()
    seal(directory, manifest(model=model, plan={"model": "m", "corpus": "c", "seed": 7}))
    if patterns:
        kinds = {"shallow": ("shallow",), "semantic": ("semantic",), "both": ("shallow", "semantic"), "none": ()}
        found = [
            (layer, memory, kind, [0, 1, 2])
            for layer, own in layers.items()
            for memory, row in enumerate(own)
            for kind in kinds[row[-1]]
        ]
        write_patterns(directory, found)
    return directory


def _value(row: Row) -> Value:
    _, top, target, most, norm, _ = row
    return top, target, None if target is None else int(top != target), most, norm, None


def activity(fires: Sequence[int]) -> dict[str, Any]:
    """The columns of an activity table: how many of the hundred prefixes each memory fires at."""
    count = len(fires)
    return {
        "memory": range(count),
        "prefixes": [PREFIXES] * count,
        "positive": fires,
        "mean": [0.1] * count,
        "min": [0.0] * count,
        "max": [1.0] * count,
        "sampled": [PREFIXES] * count,
        "std": [0.5] * count,
        "histogram": [[0] * 36] * count,
    }
