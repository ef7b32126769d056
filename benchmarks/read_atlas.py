"""How long one memory of a GPT-2-small-sized atlas takes to open: `python benchmarks/read_atlas.py [FOLDER]`.

Makes an atlas of random numbers (12 layers of 3,072 memories, 100 triggers each, 700,000 sentences; 210 MB, removed
afterwards unless FOLDER is given), then opens memories in a fresh process.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from made_up import LAYERS, MEMORIES, VOCABULARY, measure, write_atlas

TRIGGERS, SENTENCES, LENGTH = 100, 700_000, 25
OPEN = """
import psutil, sys, time
import mnemoscope as ms
began = time.perf_counter()
ms.open_atlas
print(f"import {time.perf_counter() - began:.3f} s")
for name in ("L5.M1000", "L7.M5", "L11.M3071"):
    began = time.perf_counter()
    memory = ms.open_atlas(sys.argv[1])[name]
    seconds = []
    for table in (memory.triggers, memory.value, memory.activity, memory.neighbours):
        table()
        seconds.append(time.perf_counter() - began)
    resident = psutil.Process().memory_info().rss / 1e6
    print(f"{name}: triggers {seconds[0]:.3f} s, all tables {seconds[-1]:.3f} s, {resident:.0f} MB resident")
began = time.perf_counter()
assert ms.verify(sys.argv[1]) == []
print(f"verify {time.perf_counter() - began:.2f} s")
"""


def sentences(draw: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Random sentences, 50,000 at a time."""
    for first in range(0, SENTENCES, 50_000):
        tokens = draw.integers(0, VOCABULARY, (50_000, LENGTH), dtype=np.int32)
        ids = np.arange(first, first + 50_000)
        texts = ["".join(f" w{token}" for token in row) for row in tokens.tolist()]
        once, held = np.ones(50_000, np.int32), np.zeros(50_000, bool)
        columns = {"sentence": ids, "document": ids // 9, "text": texts, "tokens": tokens}
        yield columns | {"multiplicity": once, "held_out": held}


def layer_tables(draw: np.random.Generator) -> dict[str, dict[str, Any]]:
    """The four tables of one layer."""
    rows, ids = MEMORIES * TRIGGERS, np.arange(MEMORIES)

    def numbers(*shape: int) -> Any:
        return draw.random(shape or (MEMORIES,), dtype=np.float32)

    def integers(most: int, *shape: int) -> Any:
        return draw.integers(0, most, shape or (MEMORIES,))

    ranks, half = np.tile(np.arange(TRIGGERS // 2), 2 * MEMORIES), TRIGGERS // 2
    return {
        "triggers": {
            "memory": np.repeat(ids, TRIGGERS),
            "sign": np.tile(np.repeat([1, -1], half), MEMORIES),
            "rank": ranks,
            "coefficient": numbers(rows),
            "sentence": integers(SENTENCES, rows),
            "position": integers(LENGTH - 1, rows),
            "token": integers(VOCABULARY, rows),
            "next_token": integers(VOCABULARY, rows),
            "prefix_group": ranks,
        },
        "activity": {
            "memory": ids,
            "prefixes": integers(9),
            "positive": integers(9),
            "mean": numbers(),
            "min": numbers(),
            "max": numbers(),
            "sampled": integers(9),
            "std": numbers(),
            "histogram": integers(9, MEMORIES, 36),
        },
        "values": {
            "memory": ids,
            "key_norm": numbers(),
            "up_norm": [None] * MEMORIES,
            "value_norm": numbers(),
            "top_tokens": integers(VOCABULARY, MEMORIES, 20),
            "top_scores": numbers(MEMORIES, 20),
            "bottom_tokens": integers(VOCABULARY, MEMORIES, 20),
            "bottom_scores": numbers(MEMORIES, 20),
            "max_probability": numbers(),
            "entropy": numbers(),
            "target": integers(VOCABULARY),
            "target_rank": integers(VOCABULARY),
            "trigger_log_probability": numbers(),
        },
        "neighbours": {
            "memory": np.repeat(ids, 10),
            "rank": np.tile(np.arange(10), MEMORIES),
            "other_layer": integers(LAYERS, 10 * MEMORIES),
            "other_memory": integers(MEMORIES, 10 * MEMORIES),
            "cosine": numbers(10 * MEMORIES),
        },
    }


def build(directory: Path) -> None:
    """Writes and seals the atlas."""
    draw = np.random.default_rng(0)
    words = [f" w{token}" for token in range(VOCABULARY)]
    tokens = np.arange(VOCABULARY)
    singles: dict[str, dict[str, Any]] = {
        "vocabulary": {"token": tokens, "text": words, "bytes": [word.encode() for word in words]},
        "tokens": {"token": tokens, "count": tokens, "next_count": tokens, "first_count": tokens},
        "background": {"sentence": [0], "position": [0], "token": [0], "next_token": [0]},
    }
    write_atlas(directory, singles, sentences=sentences(draw), layer=lambda: layer_tables(draw))


def main() -> None:
    """Builds the atlas where it is missing and measures."""
    measure(build, OPEN)


if __name__ == "__main__":
    main()
