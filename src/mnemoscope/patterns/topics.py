"""Finds topics: sets of content words of which a memory's triggers hold several, more often than random prefixes do.

The test does not use the topic, which was chosen to fit. It asks whether the triggers share a vocabulary, by betting on
each trigger in order of rank that its words are those of the triggers before it. A bet multiplies the stake by
1 - e + e x (mean over the trigger's words of share among the triggers before it / share in the background). For random
prefixes the expected factor is 1, whatever the dependence between the words of one prefix, so the stake exceeds 100
with a probability of at most 1 % (Ville's inequality). 1 / stake is the p-value of a topic.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnemoscope.patterns.prefixes import Background, Floats
from mnemoscope.patterns.significance import FEWEST, log10_tail
from mnemoscope.patterns.surface import Bools
from mnemoscope.patterns.words import Integers

BETS = (0.05, 0.2, 0.5)
"""Shares of the stake that are bet; the mean over them is used."""
_NOTICED_LOG10_P = -2.0
"""A recurring word with at most this p-value (log10) may belong to a topic."""
_ENOUGH_ODDS = 10.0
"""One word of a topic is enough if the odds that a prefix with one belongs to the topic are at least these."""


@dataclass(frozen=True)
class TopicVocabulary:
    keys: NDArray[np.uint64]
    held: Bools
    """[words, groups]: whether the group's prefix holds the word."""
    counted: Bools
    """[groups]: whether the group is the memory's first of its sentence."""
    shares: Floats
    """[words, groups]: the word's share of the words of background prefixes as rich as the group's."""
    rates: Floats
    """[words]: the share of background prefixes, as rich as the groups', that hold the word."""
    log10_p: Floats
    """[words]: of the word alone; 0 for words in one group."""


def read_vocabulary(
    keys: NDArray[np.uint64], place: Integers, *, counted: Bools, background: Background
) -> TopicVocabulary:
    """Group `place[i]` holds the word `keys[i]`."""
    words, which = np.unique(keys, return_inverse=True)
    held = np.zeros((words.size, counted.size), dtype=np.bool_)
    held[which, place] = True
    rich = held.sum(axis=0)
    classes = background.class_of(rich)
    places = background.words.place(words)
    total = max(1, background.size)
    numbers = background.words.counts[places]
    shares = np.maximum(background.weights[places][:, classes], background.mean_weights[places][:, None])
    richer = rich[counted].mean() / max(background.words.prefixes.size / total, 1e-9)
    rates = np.maximum(background.rates[places][:, classes[counted]].mean(axis=1), numbers / total * richer)
    counts = held[:, counted].sum(axis=1)
    log10_p = np.zeros(words.size)
    tried = int(counted.sum())
    for word in np.flatnonzero(counts >= 2).tolist():
        number = int(numbers[word])
        alike = number / rates[word] if number else total / max(richer, 1e-9)
        log10_p[word] = log10_tail(int(counts[word]), tried, number, float(alike))
    return TopicVocabulary(words, held, counted, shares, rates, log10_p)


def log10_stake(held: Bools, shares: Floats, *, background: int) -> float:
    """log10 of the stake after all bets; it starts at 1."""
    rich = held.sum(axis=0)
    held, shares, rich = held[:, rich > 0], shares[:, rich > 0], rich[rich > 0]
    if rich.size < 2:
        return 0.0
    weight = held / rich
    before = np.cumsum(weight, axis=1) - weight
    earlier = np.arange(rich.size)
    # Earlier triggers count as background prefixes, so that no word has an expected share of zero.
    expected = (shares * background + before) / np.maximum(background + earlier, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = np.where(before > 1e-9, before / np.maximum(earlier, 1) / expected, 0.0)
    gain = (surprise * weight).sum(axis=0)[1:]
    logs = np.array([np.log(1 - bet + bet * gain).sum() for bet in BETS])
    best = float(logs.max())
    return (best + float(np.log(np.exp(logs - best).mean()))) / float(np.log(10))


@dataclass(frozen=True)
class Topic:
    words: Integers
    """Indices in the vocabulary, the most significant first."""
    groups: Bools
    log10_p: float
    enough: int
    """The number of words that a prefix of the topic holds at least."""


def find_topics(vocabulary: TopicVocabulary, *, background: int, limit: float) -> list[Topic]:
    """Topics of at least 3 groups; each is searched among the groups that earlier ones leave. `limit` is log10 of the
    largest p-value that counts.
    """
    rest = vocabulary.counted.copy()
    result: list[Topic] = []
    while rest.sum() >= FEWEST:
        log10_p = -log10_stake(vocabulary.held[:, rest], vocabulary.shares[:, rest], background=background)
        if log10_p > limit:
            break
        words, core = find_core(vocabulary.held & rest, vocabulary.log10_p <= _NOTICED_LOG10_P)
        if core.sum() < FEWEST:
            break
        widest = words[np.argmax((vocabulary.held[words] & core).sum(axis=1))]
        others = np.ones(vocabulary.keys.size, dtype=np.bool_)
        others[widest] = False
        without = -log10_stake(
            vocabulary.held[np.ix_(others, rest)], vocabulary.shares[np.ix_(others, rest)], background=background
        )
        if without > limit:
            rest &= ~vocabulary.held[widest]  # one word, not a topic
            continue
        by_chance = float(1 - np.prod(1 - vocabulary.rates[words])) * int((rest & ~core).sum())
        enough = 1 if core.sum() >= _ENOUGH_ODDS * by_chance else 2
        open_groups = rest | ~vocabulary.counted
        groups = core | (open_groups & (vocabulary.held[words].sum(axis=0) >= enough))
        order = np.lexsort((vocabulary.keys[words], vocabulary.log10_p[words]))
        result.append(Topic(words[order], groups, log10_p, enough))
        rest &= ~groups
    return result


def find_core(held: Bools, noticed: Bools) -> tuple[Integers, Bools]:
    """The largest connected set of words in at least two groups each and groups with at least two of these words."""
    words = np.flatnonzero(noticed)
    inside = held[words]
    groups = np.ones(held.shape[1], dtype=np.bool_)
    while True:
        kept = (inside & groups).sum(axis=1) >= 2
        fewer = inside[kept].sum(axis=0) >= 2
        if kept.all() and (fewer == groups).all():
            break
        words, inside, groups = words[kept], inside[kept], fewer & groups
    best: tuple[Integers, Bools] = (np.zeros(0, dtype=np.int64), np.zeros(held.shape[1], dtype=np.bool_))
    left = np.ones(words.size, dtype=np.bool_)
    inside = inside & groups
    while left.any():
        members = np.zeros(words.size, dtype=np.bool_)
        members[np.argmax(left)] = True
        while True:
            covered: Bools = np.asarray(inside[members].any(axis=0))
            grown = np.asarray((inside & covered).any(axis=1))
            if (grown == members).all():
                break
            members = grown
        left &= ~members
        if covered.sum() > best[1].sum():
            best = words[members], covered
    return best
