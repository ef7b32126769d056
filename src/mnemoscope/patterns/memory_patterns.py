"""The patterns of each memory of a layer: shallow ones, and what its triggers are about, as words and topics.

Shallow patterns are surface features that the triggers share more often than random prefixes do. Every feature of every
trigger is tried, and the correction counts them all (paper, section 3.2; definitions: a pattern recurs in at least 3
prefix groups). A word that a shallow pattern explains already, because it stands at the end or at a fixed distance
before it, is not counted where that pattern holds: a memory that fires on one word is not about that word.
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
    """How many patterns each memory was tried for, words included."""


def shallow_patterns(groups: Groups, prefixes: PrefixBatch, *, background: Background, words: Integers) -> Shallow:
    """The shallow patterns of each memory; `words` says how many words are tried beside the features."""
    found = count_shared(groups, prefixes.features)
    tried = found.per_memory(groups.memories.size) + words
    least = window_offsets(found.key)
    held = background.features.count_of(found.key)
    farthest = int(least.max(initial=0)) + 1
    longer = np.array([background.longer(than) for than in range(farthest)])[least]
    eligible = np.stack([groups.count_long(prefixes.length, than) for than in range(farthest)])[least, found.memory]
    average = found.count * longer <= eligible * held
    unlikely: dict[int, list[Candidate]] = {}
    for index in np.flatnonzero((found.count >= FEWEST) & ~average).tolist():
        memory = int(found.memory[index])
        numbers = int(found.count[index]), int(eligible[index]), int(held[index]), float(longer[index])
        log10_p = log10_tail(*numbers)
        if log10_p > log10(LEVEL / tried[memory]):
            continue
        key = int(found.key[index])
        shown = background.features.showing(key)
        candidate = Candidate(key, int(found.mask[index]), log10_p, lift(*numbers), tokens_said(key), shown)
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
    """For every group the tokens that shallow patterns explain: bit a stands for the token a places before the last."""
    bits = np.zeros(groups.rank.size, dtype=np.int64)
    for memory, candidates in shallow.items():
        begin, end = groups.starts[memory], groups.starts[memory + 1]
        places = np.arange(end - begin)
        for candidate in candidates:
            family, kind, _ = split_key(candidate.key)
            said = {Feature.WORD: 1, Feature.NGRAM: (2 << kind) - 1, Feature.DISTANCE: 2 << kind}
            bits[begin:end] |= np.where((candidate.mask >> places) & 1, said.get(family, 0), 0)
    return bits


def semantic_patterns(
    groups: Groups, prefixes: PrefixBatch, *, background: Background, explained: Integers, tried: Integers
) -> dict[int, list[Semantic]]:
    """The semantic patterns of each memory that has any, by the memory's place; `tried` patterns are corrected for."""
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
        found = read_vocabulary(keys[rows], groups.place[index[rows]], counted=counted, background=background)
        patterns = _of_memory(found, background=background, limit=log10(LEVEL / max(1, int(tried[memory]))))
        if patterns:
            result[memory] = patterns
    return result


def _of_memory(found: TopicVocabulary, *, background: Background, limit: float) -> list[Semantic]:
    """Topics, and words that no topic explains."""
    about: dict[int, tuple[int, ...]] = {}
    first: list[Candidate] = []
    in_topics: set[int] = set()
    for number, topic in enumerate(find_topics(found, background=background.size, limit=log10(LEVEL))):
        candidate = _topic(number, topic, found=found, background=background)
        first.append(candidate)
        about[candidate.key] = tuple(found.keys[topic.words].tolist())
        in_topics |= set(topic.words.tolist())
    words: list[Candidate] = []
    for word in np.flatnonzero(found.log10_p <= limit).tolist():
        groups = found.held[word]
        if word in in_topics or (groups & found.counted).sum() < FEWEST:
            continue
        key = int(found.keys[word])
        share = (groups & found.counted).sum() / found.counted.sum()
        shown = background.words.showing(key)
        rate = max(found.rates[word], 1 / (background.size + 1))
        words.append(Candidate(key, mask_of(groups), float(found.log10_p[word]), float(share / rate), 1, shown))
        about[key] = (key,)
    size = found.counted.size
    kept = merge(words, first=first, groups=size, background=background.size, limit=limit)
    return [Semantic(about[candidate.key], candidate) for candidate in kept]


def _topic(number: int, topic: Topic, *, found: TopicVocabulary, background: Background) -> Candidate:
    """The topic as a pattern; the background prefixes that show it hold as many of its words as its groups must."""
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
    """Groups as bits."""
    return sum(1 << int(group) for group in np.flatnonzero(groups))
