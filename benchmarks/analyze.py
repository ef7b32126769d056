"""How long the questions of a GPT-2-small-sized atlas take: `python benchmarks/analyze.py [FOLDER]`.

Makes an atlas of random numbers (12 layers of 3,072 memories, 50 triggers of each sign, 4,000 validation prefixes of
2,000 documents, removals of 100 memories per layer, 3 patterns per memory; removed afterwards unless FOLDER is given),
then answers each question in one fresh process, and all of them with `mnemoscope analyze`.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from made_up import LAYERS, MEMORIES, VOCABULARY, measure, write_atlas

from mnemoscope.atlas.schema import TABLES

TRIGGERS, SENTENCES, LENGTH = 50, 50_000, 25
PREFIXES, DOCUMENTS, SAMPLED, PATTERNS = 4000, 2000, 100, 3
ASK = """
import sys, time
import mnemoscope as ms
began = time.perf_counter()
from mnemoscope.questions import QUESTIONS
atlas = ms.open_atlas(sys.argv[1])
print(f"{'import':24}{time.perf_counter() - began:7.2f} s")
whole = time.perf_counter()
for question in QUESTIONS:
    began = time.perf_counter()
    rows = ms.answer(atlas, question).height
    print(f"{question:24}{time.perf_counter() - began:7.2f} s {rows:6} rows", flush=True)
assert not {"torch", "transformers"} & set(sys.modules)
import psutil
resident = psutil.Process().memory_info().rss / 1e6
print(f"{'all':24}{time.perf_counter() - whole:7.2f} s, {resident:.0f} MB resident at the end")
"""


def layer_tables(draw: np.random.Generator) -> dict[str, dict[str, Any]]:
    """The tables of one layer that are asked; the neighbours are empty."""
    rows, ids = 2 * MEMORIES * TRIGGERS, np.arange(MEMORIES)

    def numbers() -> Any:
        return draw.random(MEMORIES, dtype=np.float32)

    def integers(most: int, *shape: int) -> Any:
        return draw.integers(0, most, shape or (MEMORIES,))

    ranks = np.tile(np.arange(TRIGGERS), 2 * MEMORIES)
    lists = {f"{end}_{what}": integers(VOCABULARY, MEMORIES, 20) for end in ("top", "bottom") for what in ("tokens",)}
    scores = {f"{end}_scores": draw.random((MEMORIES, 20), dtype=np.float32) for end in ("top", "bottom")}
    return {
        "triggers": {
            "memory": np.repeat(ids, 2 * TRIGGERS),
            "sign": np.tile(np.repeat([1, -1], TRIGGERS), MEMORIES),
            "rank": ranks,
            "coefficient": draw.random(rows, dtype=np.float32),
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
            **lists,
            **scores,
            "max_probability": numbers(),
            "entropy": numbers(),
            "target": integers(VOCABULARY),
            "target_rank": integers(VOCABULARY),
            "trigger_log_probability": numbers(),
        },
        "neighbours": {name: [] for name in TABLES["neighbours"].columns.names},
    }


def question_tables(draw: np.random.Generator) -> dict[str, dict[str, Any]]:
    """removals, prefixes, predictions and patterns."""
    rows = LAYERS * PREFIXES
    integer = {name: draw.integers(0, 50, rows) for name in TABLES["predictions"].columns.names}
    shares = {name: draw.random(rows, dtype=np.float32) for name in ("residual_final_probability", "effective")}
    each = LAYERS * SAMPLED * TRIGGERS
    memories = np.concatenate([np.sort(draw.permutation(MEMORIES)[:SAMPLED]) for _ in range(LAYERS)])
    position = np.repeat(draw.integers(1, LENGTH, each), 3)
    keys = LAYERS * MEMORIES * PATTERNS
    kinds = np.array(["shallow", "semantic"])
    return {
        "removals": {
            "layer": np.repeat(np.arange(LAYERS), 3 * SAMPLED * TRIGGERS),
            "memory": np.repeat(memories, 3 * TRIGGERS),
            "sign": np.ones(3 * each, np.int8),
            "trigger_rank": np.tile(np.repeat(np.arange(TRIGGERS), 3), LAYERS * SAMPLED),
            "position": position,
            "removed": ["first", "last", "random"] * each,
            "removed_position": position,
            "coefficient": 1 + draw.random(3 * each, dtype=np.float32),
            "removed_coefficient": draw.random(3 * each, dtype=np.float32),
        },
        "prefixes": {
            "prefix": np.arange(PREFIXES),
            "sentence": np.arange(PREFIXES),
            "document": np.sort(draw.integers(0, DOCUMENTS, PREFIXES)),
            "position": draw.integers(0, LENGTH - 1, PREFIXES),
            "next_token": draw.integers(0, VOCABULARY, PREFIXES),
            "final_top": draw.integers(0, 50, PREFIXES),
        },
        "predictions": {
            **integer,
            **shares,
            "prefix": np.repeat(np.arange(PREFIXES), LAYERS),
            "layer": np.tile(np.arange(LAYERS), PREFIXES),
            "top_share": draw.random(rows, dtype=np.float32),
        },
        "patterns": {
            "layer": np.repeat(np.arange(LAYERS), MEMORIES * PATTERNS),
            "memory": np.tile(np.repeat(np.arange(MEMORIES), PATTERNS), LAYERS),
            "pattern": np.tile(np.arange(PATTERNS), LAYERS * MEMORIES),
            "kind": kinds[draw.integers(0, 2, keys)],
            "description": ["the same words"] * keys,
            "triggers": draw.integers(0, 25, (keys, 8)).astype(np.int16),
            "lift": np.ones(keys, np.float32),
            "log10_p": np.ones(keys, np.float32),
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
        **question_tables(draw),
    }
    ids = np.arange(SENTENCES)
    sentences = {
        "sentence": ids,
        "document": ids // 2,
        "text": ["text"] * SENTENCES,
        "multiplicity": np.ones(SENTENCES, np.int32),
        "tokens": draw.integers(0, VOCABULARY, (SENTENCES, LENGTH), dtype=np.int32),
        "held_out": ids < PREFIXES,
    }
    write_atlas(directory, singles, sentences=[sentences], layer=lambda: layer_tables(draw))


def main() -> None:
    """Builds the atlas where it is missing and measures."""
    measure(build, ASK, then=whole)


def whole(directory: Path) -> None:
    """The command, as people type it."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "mnemoscope", "analyze", str(directory), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{'mnemoscope analyze':24}{time.perf_counter() - began:7.2f} s, with writing")


if __name__ == "__main__":
    main()
