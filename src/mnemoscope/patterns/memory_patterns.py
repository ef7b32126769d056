"""The patterns of each memory of a layer: shallow ones, and the words and topics that its triggers are about.

Shallow patterns are surface features that the triggers share more often than random prefixes do. Every feature of every
trigger is tried, and the correction counts them all (paper, section 3.2; definitions: a pattern recurs in at least 3
prefix groups). A word that a shallow pattern explains already, because it is at the end or at a fixed distance before
it, does not count where that pattern holds: a memory that fires on one word is not about that word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from mnemoscope.patterns.prefixes import Background, PrefixBatch
from mnemoscope.patterns.significance import (  # fmt: skip
    FEWEST,
    LEVEL,
    Candidate,
    Groups,
    count_shared,
    lift,
    log10_tail,
    merge,
    spread_pairs,
)
from mnemoscope.patterns.surface import Feature, split_key, tokens_said, window_offsets
from mnemoscope.patterns.topics import Topic, TopicVocabulary, find_topics, read_vocabulary
from mnemoscope.patterns.words import Integers


@dataclass(frozen=True)
class Shallow:
    """The shallow patterns of a layer's memories, by the memory's place."""

    kept: dict[int, list[Candidate]]
    unlikely: dict[int, list[Candidate]]
    """Before overlapping ones were merged."""
    tried: Integers


def shallow_patterns(groups: Groups, prefixes: PrefixBatch, *, background: Background, words: Integers) -> Shallow:
    """The shallow patterns of each memory; `words` is the number of words tried beside the features."""
    shared = count_shared(groups, prefixes.features)
    tried = shared.per_memory(groups.memories.size) + words
    least = window_offsets(shared.key)
    held = background.features.count_of(shared.key)
    farthest = int(least.max(initial=0)) + 1
    longer = np.array([background.longer(than) for than in range(farthest)])[least]
    eligible = np.stack([groups.count_long(prefixes.length, than) for than in range(farthest)])[least, shared.memory]
    average = shared.count * longer <= eligible * held
    unlikely: dict[int, list[Candidate]] = {}
    for index in np.flatnonzero((shared.count >= FEWEST) & ~average).tolist():
        memory = int(shared.memory[index])
        numbers = int(shared.count[index]), int(eligible[index]), int(held[index]), float(longer[index])
        log10_p = log10_tail(*numbers)
        if log10_p > log10(LEVEL / tried[memory]):
            continue
        key = int(shared.key[index])
        shown = background.features.showing(key)
        candidate = Candidate(key, int(shared.mask[index]), log10_p, lift(*numbers), tokens_said(key), shown)
        unlikely.setdefault(memory, []).append(candidate)
    sizes = np.diff(groups.starts)
    kept = {
        memory: merge(all_, groups=int(sizes[memory]), background=background.size, limit=log10(LEVEL / tried[memory]))
        for memory, all_ in unlikely.items()
    }
    return Shallow(kept, unlikely, tried)


@dataclass(frozen=True)
class Semantic:
    """A word, or a topic by its words, that a memory's triggers hold."""

    words: tuple[int, ...]
    """Numbers in the lexicon, the most telling first."""
    candidate: Candidate


def explained_tokens(groups: Groups, shallow: Mapping[int, Sequence[Candidate]]) -> Integers:
    """Per group the tokens that shallow patterns explain: bit a stands for the token a places before the last."""
    bits = np.zeros(groups.rank.size, dtype=np.int64)
    for memory, candidates in shallow.items():
        begin, end = groups.starts[memory], groups.starts[memory + 1]
        places = np.arange(end - begin)
        for candidate in candidates:
            family, kind, _ = split_key(candidate.key)
            widths = {Feature.WORD: 1, Feature.NGRAM: (2 << kind) - 1, Feature.DISTANCE: 2 << kind}
            bits[begin:end] |= np.where((candidate.mask >> places) & 1, widths.get(family, 0), 0)
    return bits


def semantic_patterns(
    groups: Groups, prefixes: PrefixBatch, *, background: Background, explained: Integers, tried: Integers
) -> dict[int, list[Semantic]]:
    """The semantic patterns of each memory with any, by the memory's place; corrected for `tried` patterns."""
    pairs = prefixes.words
    index, flat = spread_pairs(groups, pairs)
    fresh = (explained[index] >> np.minimum(pairs.ago[flat], 62)) & 1 == 0
    index, keys = index[fresh], pairs.keys[flat][fresh]
    bounds = np.searchsorted(index, groups.starts)
    result: dict[int, list[Semantic]] = {}
    for memory in range(groups.memories.size):
        rows = slice(bounds[memory], bounds[memory + 1])
        counted = groups.counts[groups.starts[memory] : groups.starts[memory + 1]]
        if counted.sum() < FEWEST or rows.stop - rows.start < FEWEST:
            continue
        vocabulary = read_vocabulary(keys[rows], groups.place[index[rows]], counted=counted, background=background)
        patterns = _of_memory(vocabulary, background=background, limit=log10(LEVEL / max(1, int(tried[memory]))))
        if patterns:
            result[memory] = patterns
    return result


def _of_memory(vocabulary: TopicVocabulary, *, background: Background, limit: float) -> list[Semantic]:
    about: dict[int, tuple[int, ...]] = {}
    first: list[Candidate] = []
    in_topics: set[int] = set()
    for number, topic in enumerate(find_topics(vocabulary, background=background.size, limit=log10(LEVEL))):
        candidate = _topic(number, topic, found=vocabulary, background=background)
        first.append(candidate)
        about[candidate.key] = tuple(vocabulary.keys[topic.words].tolist())
        in_topics |= set(topic.words.tolist())
    words: list[Candidate] = []
    for word in np.flatnonzero(vocabulary.log10_p <= limit).tolist():
        groups = vocabulary.held[word]
        if word in in_topics or (groups & vocabulary.counted).sum() < FEWEST:
            continue
        key = int(vocabulary.keys[word])
        share = (groups & vocabulary.counted).sum() / vocabulary.counted.sum()
        shown = background.words.showing(key)
        rate = max(vocabulary.rates[word], 1 / (background.size + 1))
        words.append(Candidate(key, mask_of(groups), float(vocabulary.log10_p[word]), float(share / rate), 1, shown))
        about[key] = (key,)
    size = vocabulary.counted.size
    kept = merge(words, first=first, groups=size, background=background.size, limit=limit)
    return [Semantic(about[candidate.key], candidate) for candidate in kept]


def _topic(number: int, topic: Topic, *, found: TopicVocabulary, background: Background) -> Candidate:
    """The topic as a pattern; its background prefixes hold as many of its words as its groups must."""
    postings = [background.words.showing(int(key)) for key in found.keys[topic.words]]
    prefixes, held = np.unique(np.concatenate(postings), return_counts=True)
    shown = prefixes[held >= topic.enough]
    per_class = np.bincount(background.richness[shown], minlength=background.in_class.size)
    classes = background.class_of(found.held[:, found.counted].sum(axis=0))
    rate = float((per_class / np.maximum(background.in_class, 1))[classes].mean())
    share = (topic.groups & found.counted).sum() / found.counted.sum()
    rate = max(rate, (shown.size + 1) / (background.size + 1))
    return Candidate(-1 - number, mask_of(topic.groups), topic.log10_p, float(share / rate), 0, shown)


def mask_of(groups: NDArray[np.bool_]) -> int:
    return sum(1 << int(group) for group in np.flatnonzero(groups))
