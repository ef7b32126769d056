"""patterns.parquet, made from a finished atlas.

The file can be made again at any time, so the atlas's own manifest does not cover it; that of `analyses/` does. Finding
the patterns is the work of finding.py.
"""

import numpy as np
import pyarrow as pa

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.patterns.finding import find_patterns
from mnemoscope.progress import Progress


def write_patterns(atlas: Atlas, *, progress: Progress | None = None) -> int:
    """Writes patterns.parquet of a finished atlas and returns how many patterns it holds.

    Raises AtlasUnfinished where a table is missing, AtlasDamaged, StoreFailed.
    """
    rows = list(find_patterns(atlas, progress=progress))
    kind = TABLES["patterns"]
    columns = {
        "layer": np.array([row.layer for row in rows], dtype=np.int16),
        "memory": np.array([row.memory for row in rows], dtype=np.int32),
        "pattern": np.array([row.pattern for row in rows], dtype=np.int16),
        "kind": pa.array([row.kind for row in rows], pa.string()),
        "description": pa.array([row.description for row in rows], pa.string()),
        "triggers": pa.array([list(row.triggers) for row in rows], pa.list_(pa.int16())),
        "lift": np.array([row.lift for row in rows], dtype=np.float32),
        "log10_p": np.array([row.log10_p for row in rows], dtype=np.float32),
    }
    write_table(atlas.path / kind.path(), columns, name=kind.name, provenance=atlas.manifest.provenance)
    record_hashes(atlas, "analyses", [kind.path()])
    return len(rows)
