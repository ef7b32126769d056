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
from mnemoscope.foundation.options.mining_options import RULES

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
    counted = ("documents", "sentences", "duplicates", "mined_sentences", "mined_tokens", "held_out_sentences")
    seal(directory, {
        "model": {
            "spec": "made up", "hub": None, "revision": None, "fingerprint": _ORIGIN.model, "family": "gpt2",
            "block": "pre-norm", "activation": "gelu", "gated": False, "head": "linear",
            "beginning": {"token": 0, "kind": "bos"}, "proof": {},
            "sizes": {
                "layers": LAYERS, "memories": [MEMORIES] * LAYERS, "vocabulary": VOCABULARY,
                **dict.fromkeys(("hidden", "context", "parameters", "ffn_parameters"), 1),
            },
        },
        "corpus": {
            "spec": "made up", "fingerprint": _ORIGIN.corpus, "counts": dict.fromkeys(counted, 0),
            "held_out_share": 0.0, "overlap": {"sentences": 0, "of": 0, "share": 0.0},
        },
        "plan": {"rules": RULES, "seed": 0, "triggers": 50},
        "plan_hash": _ORIGIN.plan,
        "layers": list(range(LAYERS)),
        "projections": {"values": "gain", "votes": "gain", "streams": "lens"},
        "out_of_memory_batches": [],
    })  # fmt: skip
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
