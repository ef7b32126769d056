"""How long a search index of a GPT-2-small-sized atlas takes: `python benchmarks/search.py [FOLDER]`.

Makes an atlas of made-up words that are as rare and as common as real ones (12 layers of 3,072 memories, 50 triggers
of each sign, 700,000 sentences of 25 tokens, 3 patterns per memory; removed afterwards unless FOLDER is given). Then
builds the index in a fresh process and asks a mixed set of searches, each kind with its own line, in one thread and in
four.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from made_up import LAYERS, MEMORIES, VOCABULARY, measure, write_atlas

from mnemoscope.atlas.schema import TABLES

TRIGGERS, SENTENCES, LENGTH, PATTERNS = 50, 700_000, 25, 3
ASK = """
import os, psutil, random, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import mnemoscope as ms
from mnemoscope.search import open_index
atlas = ms.open_atlas(sys.argv[1])
process = psutil.Process()
most, running = [0], [True]
def watch():
    while running[0]:
        most[0] = max(most[0], process.memory_info().rss)
        time.sleep(0.05)
watcher = threading.Thread(target=watch)
watcher.start()
began = time.perf_counter()
index = open_index(atlas)
seconds, worked = time.perf_counter() - began, time.process_time()
running[0] = False
watcher.join()
size = sum(file.stat().st_size for file in index.path.parent.iterdir())
whole = sum(file.stat().st_size for file in atlas.path.rglob("*.parquet"))
print(f"opened in {seconds:.1f} s ({worked:.1f} s of processor time) at load {os.getloadavg()[0]:.1f},"
      f" {most[0] / 1e6:.0f} MB resident at most;"
      f" {size / 1e6:.0f} MB beside tables of {whole / 1e6:.0f} MB")
began = time.perf_counter()
open_index(atlas).close()
print(f"opened again in {time.perf_counter() - began:.3f} s")
words = [text.strip() for text in atlas.table("vocabulary")["text"].to_list()]
draw = random.Random(0)
def word(most=50_000):
    return words[int(most ** draw.random())]
kinds = {
    "one word": lambda: index.search(word()),
    "a very common word": lambda: index.search(word(10)),
    "two words": lambda: index.search(f"{word()} {word()}"),
    "two very common words": lambda: index.search(f"{word(10)} {word(10)}"),
    "a phrase": lambda: index.search(f'"{word(300)} {word(300)}"'),
    "two letters*": lambda: index.search(word()[:2] + "*"),
    "three letters*": lambda: index.search(word()[:3] + "*"),
    "four letters*": lambda: index.search(word(50_000)[:4] + "*"),
    "in two layers": lambda: index.search(word(), layers=[3, 9]),
    "page 20": lambda: index.search(word(1000), offset=1000),
    "bottom tokens": lambda: index.search(word(), fields=["bottom"]),
    "promoting": lambda: index.promoting(" " + word()),
    "demoting": lambda: index.promoting(" " + word(), bottom=True),
    "firing on": lambda: index.firing_on(" " + word()),
    "tokens like": lambda: index.tokens_like(word()[:4]),
}
def timed(ask):
    began, worked = time.perf_counter(), time.process_time()
    ask()
    return time.perf_counter() - began, time.process_time() - worked
def line(name, seconds):
    said = []
    for kind, numbers in zip(("", "processor "), map(sorted, zip(*seconds, strict=True)), strict=True):
        p50, p99 = numbers[len(numbers) // 2], numbers[min(len(numbers) - 1, int(0.99 * len(numbers)))]
        said.append(f"{kind}p50 {1000 * p50:6.1f} ms, p99 {1000 * p99:6.1f} ms")
    print(f"{name:24}{'; '.join(said)}", flush=True)
every = []
for name, ask in kinds.items():
    timed(ask)
    line(name, seconds := [timed(ask) for _ in range(40)])
    every += seconds
line("all, mixed", every)
with ThreadPoolExecutor(4) as pool:
    began = time.perf_counter()
    seconds = list(pool.map(timed, [draw.choice(list(kinds.values())) for _ in range(400)]))
print(f"{400 / (time.perf_counter() - began):.0f} searches/s with 4 threads")
index.close()
assert not {"torch", "transformers"} & set(sys.modules)
"""


def vocabulary() -> list[str]:
    """Different made-up words of two to four syllables, each with its space; the first are the commonest."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
    draw = np.random.default_rng(1)
    found: dict[str, None] = {}
    while len(found) < VOCABULARY:
        length = 1 + min(3, len(found) // 60)
        found["".join(draw.choice(syllables, draw.integers(length, 5)))] = None
    return [f" {word}" for word in found]


def sentences(tokens: Any, words: list[str]) -> Iterator[dict[str, Any]]:
    """The sentences, 50,000 at a time."""
    for first in range(0, SENTENCES, 50_000):
        some = tokens[first : first + 50_000]
        ids = np.arange(first, first + 50_000)
        texts = ["".join(words[token] for token in row) for row in some.tolist()]
        once, held = np.ones(50_000, np.int32), np.zeros(50_000, bool)
        columns = {"sentence": ids, "document": ids // 9, "text": texts, "tokens": some}
        yield columns | {"multiplicity": once, "held_out": held}


def layer_tables(draw: np.random.Generator, tokens: Any, likely: Any) -> dict[str, dict[str, Any]]:
    """The tables of one layer; the neighbours are empty."""
    rows, ids = 2 * MEMORIES * TRIGGERS, np.arange(MEMORIES)
    ranks = np.tile(np.arange(TRIGGERS), 2 * MEMORIES)
    sentence, position = draw.integers(0, SENTENCES, rows), draw.integers(0, LENGTH - 1, rows)

    def numbers(*shape: int) -> Any:
        return draw.random(shape or (MEMORIES,), dtype=np.float32)

    def said() -> Any:
        return np.searchsorted(likely, draw.random((MEMORIES, 20))).astype(np.int32)

    none, zeros = [None] * MEMORIES, np.zeros(MEMORIES, np.int64)
    scores = -np.sort(-numbers(MEMORIES, 20))
    return {
        "triggers": {
            "memory": np.repeat(ids, 2 * TRIGGERS),
            "sign": np.tile(np.repeat([1, -1], TRIGGERS), MEMORIES),
            "rank": ranks,
            "coefficient": numbers(rows),
            "sentence": sentence,
            "position": position,
            "token": tokens[sentence, position],
            "next_token": tokens[sentence, position + 1],
            "prefix_group": ranks,
        },
        "activity": {
            "memory": ids,
            "prefixes": zeros,
            "positive": zeros,
            "mean": numbers(),
            "min": numbers(),
            "max": numbers(),
            "sampled": zeros,
            "std": numbers(),
            "histogram": np.zeros((MEMORIES, 36), np.int64),
        },
        "values": {
            "memory": ids,
            "key_norm": numbers(),
            "up_norm": none,
            "value_norm": numbers(),
            "top_tokens": said(),
            "top_scores": scores,
            "bottom_tokens": said(),
            "bottom_scores": scores,
            "max_probability": numbers(),
            "entropy": numbers(),
            "target": none,
            "target_rank": none,
            "trigger_log_probability": none,
            "working_logit": numbers(),
            "working_probability": numbers(),
            **{name: none for name, own in TABLES["values"].by_name.items() if own.since > 2},
        },
        "neighbours": {name: [] for name in TABLES["neighbours"].columns.names},
    }


def build(directory: Path) -> None:
    """Writes and seals the atlas."""
    draw = np.random.default_rng(0)
    words = vocabulary()
    # Zipf's law with the share that `the` has of English: about a twentieth.
    likely = np.cumsum(1 / (np.arange(VOCABULARY) + 2.7))
    likely /= likely[-1]
    tokens = np.searchsorted(likely, draw.random((SENTENCES, LENGTH))).astype(np.int32)
    counts, ids, keys = np.bincount(tokens.reshape(-1), minlength=VOCABULARY), np.arange(VOCABULARY), LAYERS * MEMORIES
    said = [f"ends with{words[token]}" for token in np.searchsorted(likely, draw.random(keys * PATTERNS))]
    singles: dict[str, dict[str, Any]] = {
        "vocabulary": {"token": ids, "text": words, "bytes": [word.encode() for word in words]},
        "tokens": {"token": ids, "count": counts, "next_count": counts, "first_count": counts},
        "background": {"sentence": [0], "position": [0], "token": [0], "next_token": [0]},
        "patterns": {
            "layer": np.repeat(np.arange(LAYERS), MEMORIES * PATTERNS),
            "memory": np.tile(np.repeat(np.arange(MEMORIES), PATTERNS), LAYERS),
            "pattern": np.tile(np.arange(PATTERNS), keys),
            "kind": ["shallow"] * (keys * PATTERNS),
            "description": said,
            "triggers": draw.integers(0, 25, (keys * PATTERNS, 8)).astype(np.int16),
            "lift": np.ones(keys * PATTERNS, np.float32),
            "log10_p": np.ones(keys * PATTERNS, np.float32),
        },
    }
    layer = partial(layer_tables, draw, tokens, likely)
    write_atlas(directory, singles, sentences=sentences(tokens, words), layer=layer)


def main() -> None:
    """Builds the atlas where it is missing and measures."""
    measure(build, ASK)


if __name__ == "__main__":
    main()
