"""Reads the features and content words of prefixes, and their base rates in random prefixes (the background).

A batch is the background, or all prefixes of one layer. Keys of features and words are the same in all batches. Long
prefixes hold more words than short ones, and other ones, so the base rate of a word is taken over prefixes with about
as many words. Knows no memories; tests nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.patterns.surface import FARTHEST, LONGEST_NGRAM, SHORT_PREFIXES, Feature, hash_keys, small_key
from mnemoscope.patterns.words import Integers, Keys, Lexicon, Runs, cut_runs, ranges

Floats = NDArray[np.float64]

FAR = 40
"""Farther than any shallow pattern at a distance."""
COMMON = 0.2
"""Words in more than this share of the background's prefixes indicate no topic."""
_RICHNESS_QUANTILES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.95, 0.985)
"""Quantiles of the number of content words that divide the background into classes of richness."""


@dataclass(frozen=True)
class Pairs:
    """`keys[starts[p]:starts[p + 1]]` are the distinct keys of prefix p."""

    starts: Integers
    keys: Keys
    ago: Integers
    """Tokens from the end of a word's first occurrence to the prefix's last token, `FAR` at most; of a word behind it
    the distance and `FAR`; 0 for features.
    """

    @property
    def prefix(self) -> Integers:
        return np.repeat(np.arange(self.starts.size - 1), np.diff(self.starts))


@dataclass(frozen=True)
class PrefixBatch:
    runs: Runs
    first: Integers
    """Index of each prefix's first token in `runs`."""
    end: Integers
    """Index of its last token."""
    features: Pairs
    words: Pairs

    @property
    def length(self) -> Integers:
        return self.end - self.first + 1

    def without_words(self, words: Keys) -> "PrefixBatch":
        pairs, keep = self.words, ~np.isin(self.words.keys, words)
        starts = np.searchsorted(pairs.prefix[keep], np.arange(pairs.starts.size))
        return replace(self, words=Pairs(starts, pairs.keys[keep], pairs.ago[keep]))


def read_prefixes(atlas: Atlas, sentence: Integers, *, position: Integers, lexicon: Lexicon) -> PrefixBatch:
    """The prefixes `tokens[0..position]` of `sentence`; of a model that reads sentences whole with the tokens and words
    behind them.
    """
    runs, first, end = _runs(atlas, sentence, position=position, lexicon=lexicon)
    seen = end if atlas.reading.causal else np.searchsorted(runs.sentence, runs.sentence[end], side="right") - 1
    features, words = (pairs(runs, first, end=end, seen=seen, lexicon=lexicon) for pairs in (_features, _words))
    return PrefixBatch(runs, first, end, features, words)


def number_words(atlas: Atlas, sentence: Integers, *, position: Integers, lexicon: Lexicon) -> None:
    """Numbers the words of these prefixes in the lexicon in the same order as `read_prefixes`."""
    runs, first, end = _runs(atlas, sentence, position=position, lexicon=lexicon)
    _word_features(runs, first, end=end, lexicon=lexicon)
    lexicon.contents(runs)


def _runs(atlas: Atlas, sentence: Integers, *, position: Integers, lexicon: Lexicon) -> tuple[Runs, Integers, Integers]:
    """The sentences as runs, and the indices of each prefix's first and last token in them."""
    ids, which = np.unique(sentence, return_inverse=True)
    stored = atlas.sentences(ids.tolist(), columns=["sentence", "tokens"])
    lengths = stored["tokens"].list.len().to_numpy().astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    tokens = stored["tokens"].explode(empty_as_null=False).to_numpy().astype(np.int32)
    wrong = np.flatnonzero((position < 0) | (position >= lengths[which]))
    if wrong.size:
        raise AtlasDamaged(
            f"{atlas.path}: a table names position {position[wrong[0]]} of sentence {sentence[wrong[0]]},"
            f" which has {lengths[which[wrong[0]]]} tokens"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < len(lexicon.spelling.vocabulary.texts):
        raise AtlasDamaged(f"{atlas.path}: a sentence holds a token that vocabulary.parquet does not list")
    return cut_runs(tokens, begins, spelling=lexicon.spelling), begins[which], begins[which] + position


def _features(runs: Runs, first: Integers, *, end: Integers, seen: Integers, lexicon: Lexicon) -> Pairs:
    spelling, tokens = lexicon.spelling, runs.tokens
    length = end - first + 1
    parts: list[tuple[Integers, Keys]] = []

    def add(family: int, which: Integers, values: Keys) -> None:
        parts.append((which, hash_keys(family, values)))

    def mark(family: int, which: Integers, value: int = 0) -> None:
        parts.append((which, np.full(which.size, small_key(family, value), dtype=np.uint64)))

    named = spelling.random[tokens]
    chain = np.zeros(end.size, dtype=np.uint64)
    for n in range(LONGEST_NGRAM):
        which = np.flatnonzero(length > n)
        chain[which] = chain[which] * np.uint64(0x2545F4914F6CDD1D) + named[end[which] - n]
        add(Feature.NGRAM + n, which, chain[which])
    for step in range(FARTHEST):
        which = np.flatnonzero(length > step + 1)
        add(Feature.DISTANCE + step, which, named[end[which] - step - 1])
        which = np.flatnonzero(seen - end > step)
        add(Feature.BEHIND + step, which, named[end[which] + step + 1])
    add(Feature.BEGINNING, np.arange(end.size), named[first])
    which = np.flatnonzero(length > 1)
    add(Feature.BEGINNING + 1, which, named[first[which]] * np.uint64(3) + named[first[which] + 1])
    for short in SHORT_PREFIXES:
        mark(Feature.LENGTH, np.flatnonzero(length <= short), short)
    begun = runs.start[end]
    mark(Feature.CONTINUES, np.flatnonzero(begun < end))
    for row, deltas in enumerate(spelling.depth):
        depth = np.concatenate([[0], np.cumsum(deltas[tokens], dtype=np.int64)])
        inside = depth[end + 1] - depth[first]
        straight = row == len(spelling.depth) - 1
        mark(Feature.INSIDE + row, np.flatnonzero(inside % 2 == 1 if straight else inside > 0))
    parts += _word_features(runs, first, end=end, lexicon=lexicon)
    which = np.concatenate([prefix for prefix, _ in parts])
    keys = np.concatenate([keys for _, keys in parts])
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(end.size + 1))
    return Pairs(starts, keys[order], np.zeros(keys.size, dtype=np.int64))


def _word_features(
    runs: Runs, first: Integers, *, end: Integers, lexicon: Lexicon
) -> tuple[tuple[Integers, Keys], tuple[Integers, Keys]]:
    """(prefix, key) of the features of each prefix's last word, and of the word before it."""
    last = lexicon.features(runs, end)
    begun = runs.start[end]
    before = np.flatnonzero(begun > first)
    index, keys = lexicon.features(runs, begun[before] - 1, before=True)
    return last, (before[index], keys)


def _words(runs: Runs, first: Integers, *, end: Integers, seen: Integers, lexicon: Lexicon) -> Pairs:
    """The distinct content words that end within each prefix, or by the last token `seen`."""
    places, numbers = lexicon.contents(runs)
    begin = np.searchsorted(places, first)
    sizes = np.searchsorted(places, seen, side="right") - begin
    index, flat = ranges(begin, sizes)
    starts, ago = np.concatenate([[0], np.cumsum(sizes)]), end[index] - places[flat]
    return Pairs(
        starts, numbers[flat].astype(np.uint64), np.where(ago < 0, FAR + np.minimum(-ago, 20), np.minimum(ago, FAR))
    )


@dataclass(frozen=True)
class Postings:
    """The inverse of `Pairs`: `prefixes[starts[i]:starts[i + 1]]` have `keys[i]`."""

    keys: Keys
    starts: Integers
    prefixes: Integers
    counts: Integers
    """[keys + 1]: the number of prefixes with each key; the last is 0, for unknown keys."""

    def count_of(self, keys: Keys) -> Integers:
        return self.counts[self.place(keys)]

    def showing(self, key: int) -> Integers:
        place = int(self.place(np.array([key], dtype=np.uint64))[0])
        return self.prefixes[self.starts[place] : self.starts[min(place + 1, self.keys.size)]]

    def place(self, keys: Keys) -> Integers:
        """The index of each key; the number of keys for an unknown one."""
        if not self.keys.size:
            return np.zeros(keys.shape, dtype=np.int64)
        index = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[index] == keys, index, self.keys.size)


def postings(pairs: Pairs) -> Postings:
    order = np.argsort(pairs.keys, kind="stable")
    keys, starts = np.unique(pairs.keys[order], return_index=True)
    starts = np.append(starts, order.size)
    return Postings(keys, starts, pairs.prefix[order], np.append(np.diff(starts), 0))


@dataclass(frozen=True)
class Background:
    size: int
    features: Postings
    words: Postings
    lengths: Integers
    """In tokens, sorted."""
    cuts: Floats
    """Bounds between the classes of richness, the number of content words."""
    richness: Integers
    in_class: Integers
    rates: Floats
    """[words + 1, classes]: the share of a class's prefixes that hold the word; 0 for an unknown word."""
    weights: Floats
    """[words + 1, classes]: the word's mean share of a prefix's words."""
    mean_weights: Floats
    """[words + 1]: the same over all classes."""

    def class_of(self, words: Integers) -> Integers:
        return np.searchsorted(self.cuts, words, side="right")


def count_longer(lengths: Integers, than: Integers) -> Integers:
    """How many of the ascending `lengths` are greater than each of `than`."""
    return lengths.size - np.searchsorted(lengths, than, side="right")


def read_background(prefixes: PrefixBatch) -> Background:
    size = prefixes.end.size
    rich = np.diff(prefixes.words.starts)
    positive = rich[rich > 0]
    cuts = np.unique(np.quantile(positive, _RICHNESS_QUANTILES)) if positive.size else np.zeros(0)
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
        size,
        postings(prefixes.features),
        words,
        np.sort(prefixes.length),
        cuts,
        richness,
        in_class,
        count / per_class,
        weight / per_class,
        weight.sum(axis=1) / max(1, size),
    )
