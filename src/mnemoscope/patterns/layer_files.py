"""Writes patterns.parquet: at once, or one layer at a time, in any order and in any process, joined at the end.

It can be made again at any time, so its hash is in the manifest of `analyses/`, not in the atlas's own.

Words are numbered first, in one pass over all layers, since their numbers order ties between patterns. One file per
layer lies in the atlas's work folder. Only `join_patterns` needs a finished atlas.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.manifest import ANALYSES, WORK
from mnemoscope.atlas.schema import TABLES, schema_error
from mnemoscope.atlas.store import write_table
from mnemoscope.atlas.tables import patterns_command
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.patterns.finding import Pattern, PatternFinder, columns_of, words_of
from mnemoscope.patterns.labels import write_labels

_WORDS, _LAYER = f"{WORK}/pattern-words.json", f"{WORK}/patterns-{{:03d}}.parquet"


def write_patterns(atlas: Atlas, *, progress: Progress = ignore_progress) -> int:
    """Writes patterns.parquet; returns the number of patterns."""
    total, done = sum(atlas.memories(layer) for layer in atlas.layers), 0
    progress("patterns", 0, total, "memories")
    finder = PatternFinder(atlas)
    patterns: list[Pattern] = []
    for layer in atlas.layers:
        patterns += finder.of_layer(layer)
        done += atlas.memories(layer)
        progress("patterns", done, total, "memories")
    return store_patterns(atlas, columns_of(atlas, patterns))


def store_patterns(atlas: Atlas, columns: Mapping[str, Any]) -> int:
    """Writes patterns.parquet and labels.parquet; returns the number of patterns."""
    kind = TABLES["patterns"]
    write_table(atlas.local(kind.path()), columns, name=kind.name, provenance=atlas.manifest.provenance)
    record_hashes(atlas, ANALYSES, [kind.path(), write_labels(atlas)])
    return len(columns["pattern"])


def write_words(atlas: Atlas, *, progress: Progress = ignore_progress) -> Path:
    path = atlas.local(_WORDS)
    write_json(path, {"plan": atlas.manifest.plan_hash, "words": words_of(atlas, progress=progress)})
    return path


def open_finder(atlas: Atlas) -> PatternFinder:
    """Raises AtlasUnfinished before `write_words`."""
    stored = read_object(atlas.local(_WORDS))
    if stored.get("plan") != atlas.manifest.plan_hash:
        raise AtlasUnfinished(
            f"{atlas.local(_WORDS)} is missing, or is of another run; run the same command again, which makes it"
        )
    return PatternFinder(atlas, stored["words"])


def write_layer_patterns(atlas: Atlas, layer: int, finder: PatternFinder) -> Path:
    columns, path = columns_of(atlas, finder.of_layer(layer)), atlas.local(_LAYER.format(layer))
    write_table(path, columns, name="patterns", provenance=atlas.manifest.provenance)
    return path


def join_patterns(atlas: Atlas) -> int:
    """Writes patterns.parquet from all layers' files; returns the number of patterns."""
    whole = pa.concat_tables([_read(atlas, layer) for layer in atlas.layers])
    return store_patterns(atlas, dict(zip(whole.column_names, whole.columns, strict=True)))


def _read(atlas: Atlas, layer: int) -> pa.Table:
    path = atlas.local(_LAYER.format(layer))
    try:
        table = pq.read_table(path, partitioning=None)
        error = schema_error("patterns", table.schema, atlas.manifest.provenance)
    except (OSError, pa.ArrowException) as failure:
        error = str(failure)
    if error is not None:
        raise AtlasUnfinished(
            f"the patterns of layer {layer} are missing ({path}); {patterns_command(atlas.path)} makes all of them"
        )
    return table
