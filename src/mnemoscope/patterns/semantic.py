"""Semantic patterns: what the triggers of a memory are about, as words and topics.

A word that a shallow pattern explains already, because it stands at the end or at a fixed distance before it, is not
counted where that pattern holds: a memory that fires on one word is not about that word (paper, section 3.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from mnemoscope.patterns.background import Background
from mnemoscope.patterns.chance import LEVEL
from mnemoscope.patterns.merging import Candidate, merged
from mnemoscope.patterns.prefixes import Prefixes
from mnemoscope.patterns.sharing import FEWEST, Groups
from mnemoscope.patterns.surface import FAMILY_SHIFT, FARTHEST, LONGEST_NGRAM, Family
from mnemoscope.patterns.topics import Topic, Vocabulary, topics, vocabulary
from mnemoscope.patterns.words import Integers, ranges


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
            family = candidate.key >> FAMILY_SHIFT
            if family == Family.WORD:
                tokens = 1
            elif Family.NGRAM <= family < Family.NGRAM + LONGEST_NGRAM:
                tokens = (1 << (family - Family.NGRAM + 1)) - 1
            elif Family.DISTANCE <= family < Family.DISTANCE + FARTHEST:
                tokens = 1 << (family - Family.DISTANCE + 1)
            else:
                continue
            bits[begin:end] |= np.where((candidate.mask >> places) & 1, tokens, 0)
    return bits


def semantic_patterns(
    groups: Groups, prefixes: Prefixes, *, background: Background, explained: Integers, tried: Integers
) -> dict[int, list[Semantic]]:
    """The semantic patterns of each memory that has any, by the memory's place; `tried` patterns are corrected for."""
    pairs = prefixes.words
    index, flat = ranges(pairs.starts[groups.prefix], np.diff(pairs.starts)[groups.prefix])
    fresh = (explained[index] >> np.minimum(pairs.ago[flat], 62)) & 1 == 0
    index, keys = index[fresh], pairs.keys[flat][fresh]
    bounds = np.searchsorted(index, groups.starts)
    result: dict[int, list[Semantic]] = {}
    for memory in range(groups.memories.size):
        rows = slice(bounds[memory], bounds[memory + 1])
        counted = groups.counts[groups.starts[memory] : groups.starts[memory + 1]]
        if counted.sum() < FEWEST or rows.stop - rows.start < FEWEST:
            continue
        found = vocabulary(keys[rows], groups.place[index[rows]], counted=counted, background=background)
        patterns = _of_memory(found, background=background, limit=log10(LEVEL / max(1, int(tried[memory]))))
        if patterns:
            result[memory] = patterns
    return result


def _of_memory(found: Vocabulary, *, background: Background, limit: float) -> list[Semantic]:
    """Topics, and words that no topic explains."""
    about: dict[int, tuple[int, ...]] = {}
    first: list[Candidate] = []
    in_topics: set[int] = set()
    for number, topic in enumerate(topics(found, background=background.size, limit=log10(LEVEL))):
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
    kept = merged(words, first=first, groups=size, background=background.size, limit=limit)
    return [Semantic(about[candidate.key], candidate) for candidate in kept]


def _topic(number: int, topic: Topic, *, found: Vocabulary, background: Background) -> Candidate:
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
