"""The background: what randomly drawn prefixes show, as a base rate for what a memory's triggers share.

Holds the features and words of the prefixes of background.parquet, by key. Long prefixes hold more words than short
ones, and others, so the rate of a word is asked of prefixes with about as many words. Nothing here knows memories.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnemoscope.patterns.prefixes import Pairs, Prefixes
from mnemoscope.patterns.words import Integers, Keys

Floats = NDArray[np.float64]

COMMON = 0.2
"""Words that more than this share of the background's prefixes hold tell no topic."""
_CUTS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.95, 0.985)
"""Quantiles of the number of content words at which the background is divided by richness."""


@dataclass(frozen=True)
class Postings:
    """For every key the background prefixes that show it: `prefixes[starts[i]:starts[i + 1]]` for `keys[i]`."""

    keys: Keys
    starts: Integers
    prefixes: Integers
    counts: Integers
    """[keys + 1]: how many prefixes show each key; 0 for a key that none shows."""

    def held(self, keys: Keys) -> Integers:
        """How many of the background's prefixes show each key."""
        return self.counts[self.place(keys)]

    def showing(self, key: int) -> Integers:
        """The background prefixes that show one key, in order."""
        place = int(self.place(np.array([key], dtype=np.uint64))[0])
        return self.prefixes[self.starts[place] : self.starts[min(place + 1, self.keys.size)]]

    def place(self, keys: Keys) -> Integers:
        """The index of each key; the number of keys for one that the background lacks."""
        if not self.keys.size:
            return np.zeros(keys.shape, dtype=np.int64)
        found = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[found] == keys, found, self.keys.size)


def postings(pairs: Pairs) -> Postings:
    """The pairs of a batch, turned round."""
    prefix = np.repeat(np.arange(pairs.starts.size - 1), np.diff(pairs.starts))
    order = np.argsort(pairs.keys, kind="stable")
    keys, starts = np.unique(pairs.keys[order], return_index=True)
    starts = np.append(starts, order.size)
    return Postings(keys, starts, prefix[order], np.append(np.diff(starts), 0))


@dataclass(frozen=True)
class Background:
    """Features and words of the background, and how long and how rich in words its prefixes are."""

    size: int
    features: Postings
    words: Postings
    lengths: Integers
    """The lengths in tokens, sorted."""
    cuts: Floats
    """Bounds between the classes of richness (number of content words)."""
    richness: Integers
    """The class of every prefix."""
    in_class: Integers
    """How many prefixes each class has."""
    rates: Floats
    """[words + 1, classes]: the share of a class's prefixes that hold the word; 0 for a word that no prefix holds."""
    weights: Floats
    """The same, each prefix counted as one over its number of words: the share of the word among a prefix's words."""
    mean_weights: Floats
    """[words + 1]: the same over the whole background."""

    def longer(self, than: int) -> int:
        """How many prefixes have more than `than` tokens."""
        return self.size - int(np.searchsorted(self.lengths, than, side="right"))

    def class_of(self, words: Integers) -> Integers:
        """The class of richness of prefixes with so many content words."""
        return np.searchsorted(self.cuts, words, side="right")


def read_background(prefixes: Prefixes) -> Background:
    """The background that these prefixes make."""
    size = prefixes.end.size
    rich = np.diff(prefixes.words.starts)
    some = rich[rich > 0]
    cuts = np.unique(np.quantile(some, _CUTS)) if some.size else np.zeros(0)
    richness = np.searchsorted(cuts, rich, side="right")
    in_class = np.bincount(richness, minlength=cuts.size + 1)
    words = postings(prefixes.words)
    shape = (words.keys.size + 1, cuts.size + 1)
    which = np.repeat(np.arange(words.keys.size), np.diff(words.starts))
    flat = which * shape[1] + richness[words.prefixes]
    count = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
    weight = np.bincount(flat, weights=1 / rich[words.prefixes], minlength=shape[0] * shape[1]).reshape(shape)
    per_class = np.maximum(in_class, 1)
    return Background(
        size, postings(prefixes.features), words, np.sort(prefixes.length), cuts, richness, in_class,
        count / per_class, weight / per_class, weight.sum(axis=1) / max(1, size),
    )  # fmt: skip
