"""Which documents are kept out of mining: a rule on the text alone, whatever the seed (definitions.md section 3)."""

import hashlib

import numpy as np
from numpy.typing import NDArray

SHARES = 10_000
"""Documents hash into this many classes."""
LEAST, MOST = 200, 1_000
"""The threshold is at least 2 % and at most 10 % of the classes ..."""
ENOUGH = 4_000
"""... and in between the first that holds out this many sentences."""


def document_hash(text: str) -> int:
    """The document's class in 0..9999: its whole blake2b hash as one number, modulo 10,000."""
    return int(hashlib.blake2b(text.encode()).hexdigest(), 16) % SHARES


def held_out_threshold(classes: NDArray[np.integer], sentences: NDArray[np.integer]) -> int:
    """The threshold for documents of these `classes` that hold so many `sentences` each: below it is held out."""
    counts = np.bincount(classes, weights=sentences, minlength=SHARES)[:MOST]
    reached = np.flatnonzero(np.cumsum(counts) >= ENOUGH)
    first = int(reached[0]) + 1 if len(reached) else MOST
    return min(MOST, max(LEAST, first))
