"""Atlases of GPT-2-small's size without a model: what the benchmarks of reading have in common. Not a benchmark."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES, Provenance
from mnemoscope.atlas.store import write_sentences, write_table

LAYERS, MEMORIES, VOCABULARY = 12, 3072, 50_257
_ORIGIN = Provenance("model", "corpus", "plan")

Columns = dict[str, Any]


def write_atlas(
    directory: Path,
    singles: Mapping[str, Columns],
    *,
    sentences: Iterable[Columns],
    layer: Callable[[], Mapping[str, Columns]],
) -> None:
    """Writes and seals an atlas: single tables, pieces of the sentences' table, and every layer's tables in turn."""
    for name, columns in singles.items():
        write_table(directory / TABLES[name].path(), columns, name=name, provenance=_ORIGIN)
    write_sentences(directory, sentences, provenance=_ORIGIN)
    for number in range(LAYERS):
        for name, columns in layer().items():
            write_table(directory / TABLES[name].path(number), columns, name=name, provenance=_ORIGIN)
    sizes = {"layers": LAYERS, "memories": [MEMORIES] * LAYERS, "vocabulary": VOCABULARY}
    manifest = {
        "model": {"fingerprint": _ORIGIN.model, "sizes": sizes},
        "corpus": {"fingerprint": _ORIGIN.corpus},
        "plan": {"seed": 0},
        "plan_hash": _ORIGIN.plan,
        "layers": list(range(LAYERS)),
    }
    seal(directory, manifest)
    if "patterns" in singles:
        record_hashes(open_atlas(directory), "analyses", ["patterns.parquet"])


def measure(build: Callable[[Path], None], asked: str, *, then: Callable[[Path], None] | None = None) -> None:
    """Builds the atlas in the folder named on the command line, if it is not there, and runs `asked` on it as Python.

    Without a folder the atlas is made in a temporary one. `then` is called with it afterwards.
    """
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if str(directory).startswith("-"):
            raise SystemExit(f"{directory} is no folder; give a folder for the atlas, or nothing")
        if not (directory / "manifest.json").is_file():
            build(directory)
        subprocess.run([sys.executable, "-c", asked, str(directory)], check=True)
        if then is not None:
            then(directory)
