"""Finds the shallow and the semantic patterns of each memory of a layer (paper, section 3.2).

Shallow patterns are surface features that at least 3 prefix groups share, more often than random prefixes do, and, in a
layer of many memories, than the triggers of all of them. Every feature of every trigger is tested, and p-values are
corrected for their number. A semantic pattern is a word, a topic, or a field of meaning (fields.py). A word that a
shallow pattern holds at a fixed distance from the end is not evidence for a word or topic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np

from mnemoscope.patterns.fields import FieldPattern
from mnemoscope.patterns.prefixes import FAR, Background, PrefixBatch, count_longer, postings
from mnemoscope.patterns.significance import (
    COMPANY,
    FEWEST,
    LEVEL,
    Candidate,
    Groups,
    count_shared,
    lift,
    log10_tail,
    mask_of,
    merge,
    spread_pairs,
)
from mnemoscope.patterns.surface import Feature, split_key, tokens_said, window_offsets
from mnemoscope.patterns.topics import Topic, TopicVocabulary, find_topics, read_vocabulary
from mnemoscope.patterns.words import Integers


@dataclass(frozen=True)
class Shallow:
    """The shallow patterns of a layer, by the memory's index in `Groups.memories`."""

    kept: dict[int, list[Candidate]]
    unlikely: dict[int, list[Candidate]]
    """Before overlapping ones were merged."""
    tried: Integers
    """The number of tests per memory."""


def shallow_patterns(groups: Groups, prefixes: PrefixBatch, *, background: Background, words: Integers) -> Shallow:
    """`words` is the number of words that are tested beside the features, per memory."""
    shared = count_shared(groups, prefixes.features)
    tried = shared.per_memory(groups.memories.size) + words
    least = window_offsets(shared.key)
    held = background.features.count_of(shared.key)
    farthest = int(least.max(initial=0)) + 1
    longer = count_longer(background.lengths, np.arange(farthest))[least]
    eligible = np.stack([groups.count_long(prefixes.length, than) for than in range(farthest)])[least, shared.memory]
    average = shared.count * longer <= eligible * held
    compared = [(held, longer)]
    if groups.memories.size >= COMPANY:
        among = count_longer(np.sort(prefixes.length), np.arange(farthest))[least]
        compared.append((postings(prefixes.features).count_of(shared.key), among))
    unlikely: dict[int, list[Candidate]] = {}
    for index in np.flatnonzero((shared.count >= FEWEST) & ~average).tolist():
        memory = int(shared.memory[index])
        counts = int(shared.count[index]), int(eligible[index])
        others = [(int(showing[index]), float(size[index])) for showing, size in compared]
        log10_p = max(log10_tail(*counts, *one) for one in others)
        if log10_p > log10(LEVEL / tried[memory]):
            continue
        key = int(shared.key[index])
        shown = background.features.showing(key)
        lifted = lift(*counts, *others[0])
        candidate = Candidate(key, int(shared.mask[index]), log10_p, lifted, tokens_said(key), shown)
        unlikely.setdefault(memory, []).append(candidate)
    sizes = np.diff(groups.starts)
    kept = {
        memory: merge(each, groups=int(sizes[memory]), background=background.size, limit=log10(LEVEL / tried[memory]))
        for memory, each in unlikely.items()
    }
    return Shallow(kept, unlikely, tried)


@dataclass(frozen=True)
class Semantic:
    words: tuple[int, ...]
    """Numbers in the lexicon, the most significant first; one for a word, several for a topic, none for a field."""
    candidate: Candidate
    field: FieldPattern | None = None


def explained_tokens(groups: Groups, shallow: Mapping[int, Sequence[Candidate]]) -> Integers:
    """A bit mask per group: bit a is set if a shallow pattern explains the token a places before the last, and bit
    `FAR` + a if it explains the one so far behind it.
    """
    bits = np.zeros(groups.rank.size, dtype=np.int64)
    for memory, candidates in shallow.items():
        begin, end = groups.starts[memory], groups.starts[memory + 1]
        places = np.arange(end - begin)
        for candidate in candidates:
            family, kind, _ = split_key(candidate.key)
            widths = {Feature.WORD: 1, Feature.NGRAM: (2 << kind) - 1, Feature.DISTANCE: 2 << kind}
            widths[Feature.BEHIND] = 2 << FAR + kind
            bits[begin:end] |= np.where((candidate.mask >> places) & 1, widths.get(family, 0), 0)
    return bits


def semantic_patterns(
    groups: Groups,
    prefixes: PrefixBatch,
    *,
    background: Background,
    explained: Integers,
    tried: Integers,
    fields: Mapping[int, Sequence[FieldPattern]],
) -> dict[int, list[Semantic]]:
    """The semantic patterns by the memory's index, of memories with any. `tried` is the number of tests per memory,
    `fields` are the fields found.
    """
    pairs = prefixes.words
    index, flat = spread_pairs(groups, pairs)
    unexplained = (explained[index] >> np.minimum(pairs.ago[flat], 62)) & 1 == 0
    index, keys = index[unexplained], pairs.keys[flat][unexplained]
    bounds = np.searchsorted(index, groups.starts)
    result: dict[int, list[Semantic]] = {}
    for memory in range(groups.memories.size):
        rows = slice(bounds[memory], bounds[memory + 1])
        counted = groups.counts[groups.starts[memory] : groups.starts[memory + 1]]
        if counted.sum() < FEWEST:
            continue
        vocabulary = read_vocabulary(keys[rows], groups.place[index[rows]], counted=counted, background=background)
        limit = log10(LEVEL / max(1, int(tried[memory])))
        patterns = _find_semantic(vocabulary, background=background, limit=limit, fields=fields.get(memory, ()))
        if patterns:
            result[memory] = patterns
    return result


def _find_semantic(
    vocabulary: TopicVocabulary, *, background: Background, limit: float, fields: Sequence[FieldPattern]
) -> list[Semantic]:
    words_of: dict[int, tuple[int, ...]] = {}
    topics: list[Candidate] = []
    in_topics: set[int] = set()
    for number, topic in enumerate(find_topics(vocabulary, background=background.size, limit=log10(LEVEL))):
        candidate = _topic_candidate(number, topic, vocabulary=vocabulary, background=background)
        topics.append(candidate)
        words_of[candidate.key] = tuple(vocabulary.keys[topic.words].tolist())
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
        words_of[key] = (key,)
    size = vocabulary.counted.size
    field_of = {field.candidate.key: field for field in fields}
    others = [*words, *(field.candidate for field in fields)]
    kept = merge(others, first=topics, groups=size, background=background.size, limit=limit)
    return [Semantic(words_of.get(one.key, ()), one, field_of.get(one.key)) for one in kept]


def _topic_candidate(number: int, topic: Topic, *, vocabulary: TopicVocabulary, background: Background) -> Candidate:
    """A background prefix shows the topic if it holds at least `topic.enough` of its words."""
    postings = [background.words.showing(int(key)) for key in vocabulary.keys[topic.words]]
    prefixes, held = np.unique(np.concatenate(postings), return_counts=True)
    shown = prefixes[held >= topic.enough]
    per_class = np.bincount(background.richness[shown], minlength=background.in_class.size)
    classes = background.class_of(vocabulary.held[:, vocabulary.counted].sum(axis=0))
    rate = float((per_class / np.maximum(background.in_class, 1))[classes].mean())
    share = (topic.groups & vocabulary.counted).sum() / vocabulary.counted.sum()
    rate = max(rate, (shown.size + 1) / (background.size + 1))
    return Candidate(-1 - number, mask_of(topic.groups), topic.log10_p, float(share / rate), 0, shown)
