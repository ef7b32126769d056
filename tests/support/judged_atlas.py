"""An atlas for people to judge: two layers of six memories, the last of each never fires. Not a test itself.

Memory m of either layer has 25 triggers ` w.. w.. marker` whose last token is its own word ` last{m}`; of memory 1 the
triggers of ranks 0 and 1 have the same prefix, so that it shows 24.
"""

import hashlib
from pathlib import Path

import polars as pl

from mnemoscope.annotate.campaigns.items import CASES
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.manifest import MANIFEST, SEAL
from mnemoscope.atlas.store import write_free_table
from support.handbuilt_answers import write_patterns
from support.handbuilt_atlas import PROVENANCE
from support.pattern_atlas import build

MEMORIES = 6
SENTENCES = 30


def judged_atlas(directory: Path, *, cases: int = 4, patterns: bool = True) -> Atlas:
    """The atlas, with automatic patterns for memory 0 of layer 0, and so many compositions listed."""
    sentences = [[f"w{s}", f"v{s % 7}", f"last{m}", "end"] for m in range(MEMORIES) for s in range(SENTENCES)]
    sentences.append([*sentences[SENTENCES][:3], "stop"])  # its prefix of three words is that of sentence 30
    twin = len(sentences) - 1
    layer = [[(m * SENTENCES + s, 2) for s in range(25)] for m in range(MEMORIES - 1)] + [[]]
    layer[1][1] = (twin, 2)
    background = [(s, s % 4) for s in range(MEMORIES * SENTENCES)]
    build(directory, sentences, layers=[layer, layer], background=background)
    if patterns:
        write_patterns(directory, [(0, 0, "shallow", [0, 1, 2, 3, 4]), (0, 0, "semantic", [4, 5, 6])])
    if cases:
        list_cases(directory, cases)
    return open_atlas(directory)


def list_cases(directory: Path, count: int) -> None:
    """Lists so many compositions of the last layer, as refinement_events does."""
    rows = {
        "prefix": pl.Series(range(10, 10 + count), dtype=pl.Int32),
        "layer": pl.Series([1] * count, dtype=pl.Int16),
        "prefix_text": [f"people say {n}" for n in range(count)],
        "residual_text": [" later"] * count,
        "ffn_text": [" a"] * count,
        "output_text": [" earlier"] * count,
    }
    write_free_table(
        directory / CASES, pl.DataFrame(rows).to_arrow(), name="refinement_events.cases", provenance=PROVENANCE
    )
    record_hashes(open_atlas(directory), "analyses", [CASES])


def another_atlas(directory: Path) -> Atlas:
    """The same tables under a manifest of another hash, as if another atlas had been mined."""
    judged_atlas(directory, cases=0, patterns=False)
    data = (directory / MANIFEST).read_bytes() + b"\n"
    (directory / MANIFEST).write_bytes(data)
    (directory / SEAL).write_text(f"{hashlib.sha256(data).hexdigest()}\n")
    return open_atlas(directory)
