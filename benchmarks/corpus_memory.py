"""Measure what preparing a text costs: resident memory at two sizes, seconds and tokens per second.

Each size runs in a process of its own, with a cheap tokenizer (a word's hash), so that only this package is measured.
The text is varied and synthetic, so nearly every sentence is distinct: the worst case for memory.

    python benchmarks/corpus_memory.py --tokens 1000000 10000000
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import psutil

_WORD = re.compile(r"\S+")


class Hashed:
    """A tokenizer of a token per word."""

    def encode(self, texts: list[str], /) -> list[list[int]]:
        """Return the hashes of the words of every text."""
        return [[zlib.crc32(word.encode()) % 50_000 for word in text.split()] for text in texts]

    def offsets(self, text: str, /) -> list[tuple[int, int]]:
        """Return the spans of the words."""
        return [found.span() for found in _WORD.finditer(text)]


def write_text(path: Path, tokens: int) -> None:
    """Write a text of about so many words: sentences of English-like length, three to a paragraph."""
    chance = np.random.default_rng(tokens)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < tokens:
            lengths = np.clip(chance.lognormal(2.8, 0.6, 3_000), 1, 300).astype(int)
            numbers = iter(chance.zipf(1.3, int(lengths.sum())) % 100_000)
            for count, length in enumerate(lengths):
                words = [f"w{next(numbers)}" for _ in range(length)]
                file.write(f"The {' '.join(words)}." + ("\n\n" if count % 3 == 2 else " "))
            written += int(lengths.sum()) + len(lengths)


def measure(path: Path) -> dict[str, float]:
    """Prepare and walk over all batches in this process; return its peak resident memory and times."""
    from mnemoscope.corpus import open_source, prepare

    process = psutil.Process()
    peak = {"prepare": 0, "walk": 0}
    phase = "prepare"
    running = True

    def watch() -> None:
        while running:
            peak[phase] = max(peak[phase], process.memory_info().rss)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = process.memory_info().rss
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        start = time.perf_counter()
        copy = prepare(
            open_source(str(path)),
            Hashed(),
            directory=Path(folder) / "copy",
            longest=511,
            split="sentence",
            vocabulary=50_000,
        )
        prepared = time.perf_counter() - start
        phase = "walk"
        start = time.perf_counter()
        batches = copy.batches(8_192)
        planned = time.perf_counter() - start
        start = time.perf_counter()
        walked = sum(len(copy.tokens(int(i))) for k in range(batches.count) for i in batches.ids(k))
        walk = time.perf_counter() - start
        running = False
        watcher.join()
    return {
        "tokens": copy.counts["tokens"],
        "walked_tokens": walked,
        "sentences": copy.sentences,
        "start_mb": before / 1e6,
        "prepare_peak_mb": peak["prepare"] / 1e6,
        "walk_peak_mb": peak["walk"] / 1e6,
        "prepare_s": prepared,
        "plan_s": planned,
        "walk_s": walk,
        "text_mb_per_s": copy.counts["text_bytes"] / 1e6 / prepared,
        "padding": batches.padding / batches.positions,
    }


def main() -> None:
    """Print one JSON line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--text", type=Path, help="measure this text, in this process")
    arguments = parser.parse_args()
    if arguments.text:
        print(json.dumps({name: round(value, 4) for name, value in measure(arguments.text).items()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        for tokens in arguments.tokens:
            path = Path(folder) / f"{tokens}.txt"
            write_text(path, tokens)
            subprocess.run([sys.executable, __file__, "--text", str(path)], check=True)


if __name__ == "__main__":
    main()
