"""Synthetic texts for the tests of the corpus room."""

import gzip
import lzma
import random
from collections.abc import Callable

import zstandard

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
"""How a file of each ending is packed."""


def varied_text(documents: int, *, seed: int = 0, repeats: float = 0.3, longest: int = 5) -> str:
    """Documents of a few sentences, some of them repeated, some over-long, some of one word, some without tokens."""
    chance = random.Random(seed)
    earlier = ["Hello there."]
    parts = []
    for _ in range(documents):
        sentences = []
        for _ in range(chance.randint(1, longest)):
            if chance.random() < repeats:
                sentences.append(chance.choice(earlier))
                continue
            length = chance.choice([0, 1, 3, 8, 15, 40])
            words = [f"w{chance.randint(0, 3000)}" for _ in range(length)]
            sentences.append("X" + " ".join(words) + "." if words else "xxx.")
            earlier.append(sentences[-1])
        parts.append((" " if chance.random() < 0.5 else "\n").join(sentences))
    return "\n\n".join(parts)
