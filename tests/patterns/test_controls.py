"""Positive and negative controls on real text: random prefixes, planted n-grams, planted topics.

The text is Python's documentation, so that words are as common, as bursty and as correlated as words are. Shares
are asserted of memories (is one found?) and of triggers (are the right ones explained?).
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mnemoscope.patterns import write_patterns
from mnemoscope.patterns.word_lists import is_stop_word
from support.pattern_atlas import Place, build, random_places, real_sentences

pytestmark = pytest.mark.full

BACKGROUND = 20_000
Explained = dict[int, set[int]]


def found_in(directory: Path, sentences: list[list[str]], memories: list[list[Place]], seed: int = 5) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    background = random_places(sentences, BACKGROUND, random=random)
    atlas = build(directory, sentences, layers=[memories], background=background)
    write_patterns(atlas)
    return atlas.table("patterns")


def explained(found: pl.DataFrame, kind: str) -> Explained:
    """By memory: the ranks of the triggers that its patterns of this kind explain."""
    result: Explained = defaultdict(set)
    for memory, ranks in found.filter(pl.col("kind") == kind).select("memory", "triggers").iter_rows():
        result[memory] |= set(ranks)
    return result


@pytest.mark.fast(0, full=1)
@pytest.mark.parametrize("triggers", [10, 25])
def test_random_prefixes_have_patterns_for_at_most_7_in_500(tmp_path: Path, triggers: int) -> None:
    """The tests are at the level of 1 % for shallow patterns and words, 1 % for topics, and on the safe side of it.

    At a level of 3 % it would be 12 and 9 of 500, of 1 % it is 2 and 4 (docs/log).
    """
    sentences = [list(words) for words in real_sentences()]
    random = np.random.default_rng(1)
    memories = [random_places(sentences, triggers, random=random, distinct=True) for _ in range(500)]
    found = found_in(tmp_path, sentences, memories)
    assert found["memory"].n_unique() <= 7
    assert (found["log10_p"] <= -2).all()  # corrected or not, nothing stands on more than 1 %


def test_random_long_prefixes_have_patterns_for_at_most_5_percent(tmp_path: Path) -> None:
    """A memory that fires on long prefixes has nothing in common but length, though long prefixes share more words."""
    sentences = [list(words) for words in real_sentences()]
    long = [number for number, words in enumerate(sentences) if len(words) >= 30]
    random = np.random.default_rng(2)
    memories = []
    for _ in range(300):
        chosen = random.choice(long, 25, replace=False)
        memories.append([(int(s), int(random.integers(25, len(sentences[s])))) for s in chosen])
    found = found_in(tmp_path, sentences, memories)
    semantic = found.filter(pl.col("kind") == "semantic")
    assert semantic["memory"].n_unique() / len(memories) <= 0.05


def places_of_ngrams(sentences: list[list[str]], size: int) -> dict[tuple[str, ...], list[Place]]:
    """Where each n-gram ends: one place in each sentence that holds it, and one for each prefix."""
    found: dict[tuple[str, ...], dict[tuple[str, ...], Place]] = defaultdict(dict)
    for number, words in enumerate(sentences):
        seen = set()
        for end in range(size, len(words) + 1):
            ngram = tuple(words[end - size : end])
            if ngram not in seen:
                seen.add(ngram)
                found[ngram].setdefault(tuple(words[:end]), (number, end - 1))
    return {ngram: [*places.values()] for ngram, places in found.items()}


@pytest.mark.fast(0, full=2)
@pytest.mark.parametrize(("size", "count"), [(1, 15), (4, 6), (2, 15), (3, 15)])
def test_planted_ngrams_are_found(tmp_path: Path, size: int, count: int) -> None:
    """40 memories `count` of whose 25 triggers end in an n-gram, the others at random; 40 with 25 at random."""
    sentences = [list(words) for words in real_sentences()]
    random = np.random.default_rng(size)
    often = {n: places for n, places in places_of_ngrams(sentences, size).items() if count <= len(places) <= 400}
    words_only = sorted(ngram for ngram in often if all(re.match(r"[a-z]", word) for word in ngram))
    planted = [words_only[index] for index in random.choice(len(words_only), 40, replace=False)]
    memories: list[list[Place]] = []
    for ngram in planted:
        places = often[ngram]
        ending = [places[index] for index in random.choice(len(places), count, replace=False)]
        memories.append(ending + random_places(sentences, 25 - count, random=random, distinct=True))
    memories += [random_places(sentences, 25, random=random, distinct=True) for _ in range(40)]
    found = found_in(tmp_path, sentences, memories)

    right = wrong = missed = named = 0
    for memory, ngram in enumerate(planted):
        # Of all shallow patterns, the one that explains most; it may say more than the n-gram if all triggers do.
        rows = found.filter((pl.col("memory") == memory) & (pl.col("kind") == "shallow"))
        ranks = set(rows["triggers"][0].to_list()) if rows.height else set()
        ending = {rank for rank, (s, j) in enumerate(memories[memory]) if sentences[s][: j + 1][-size:] == list(ngram)}
        right, wrong, missed = right + len(ranks & ending), wrong + len(ranks - ending), missed + len(ending - ranks)
        named += any(" ".join(ngram) in description.replace(" ,", ",") for description in rows["description"])
    assert named / len(planted) >= 0.9  # recall over memories
    assert right / (right + missed) >= 0.9  # recall over triggers
    assert right / (right + wrong) >= 0.9  # precision over triggers
    with_pattern = set(found.filter(pl.col("kind") == "shallow")["memory"])
    assert sum(memory < 40 for memory in with_pattern) / len(with_pattern) >= 0.9  # precision over memories


def planted_topic(sentences: Any, topic: Any, count: int, *, random: np.random.Generator, held: int) -> list[list[str]]:
    """New sentences, each an old one with `held` words of the topic put in; any two share at most 3 of them."""
    made: list[list[str]] = []
    chosen: list[set[str]] = []
    while len(made) < count:
        words = set(random.choice(topic, held, replace=False).tolist())
        if any(len(words & other) > 3 for other in chosen):
            continue
        chosen.append(words)
        base = list(sentences[int(random.integers(len(sentences)))])
        for word in sorted(words):
            base.insert(int(random.integers(len(base))), word)
        made.append(base)
    return made


@pytest.mark.fast(0, full=2)
@pytest.mark.parametrize(("held", "noise"), [(3, 0), (5, 10), (5, 0), (7, 10)])
def test_planted_topics_are_found(tmp_path: Path, held: int, noise: int) -> None:
    """30 topics of 20 words; a topic's triggers hold `held` of them each, and `noise` of the 25 triggers hold none.

    30 more memories have random triggers only. The topics' sentences are part of the text, and of its background.
    """
    sentences = [list(words) for words in real_sentences()]
    random = np.random.default_rng(held + noise)
    counts: dict[str, int] = defaultdict(int)
    for words in sentences:
        for word in words:
            counts[word] += 1
    content = sorted(w for w, c in counts.items() if 2 <= c <= 60 and w.isalpha() and w.islower() and len(w) > 3)
    content = [word for word in content if not is_stop_word(word)]
    text = list(sentences)
    memories: list[list[Place]] = []
    planted: list[set[int]] = []
    topics: list[list[str]] = []
    for _ in range(30):
        topics.append(random.choice(content, 20, replace=False).tolist())
        made = planted_topic(sentences, topics[-1], 25 - noise, random=random, held=held)
        # The prefix ends at the last word: everything that was put in lies before.
        triggers = [(len(text) + index, len(words) - 1) for index, words in enumerate(made)]
        text += made
        triggers += random_places(sentences, noise, random=random, distinct=True)
        order = random.permutation(25)
        memories.append([triggers[index] for index in order])
        planted.append({rank for rank, index in enumerate(order) if index < len(made)})
    memories += [random_places(sentences, 25, random=random, distinct=True) for _ in range(30)]
    found = found_in(tmp_path, text, memories)

    about = explained(found, "semantic")
    assert sum(len(about[memory] & planted[memory]) >= 3 for memory in range(30)) / 30 >= 0.9  # recall over memories
    assert sum(memory < 30 for memory in about if about[memory]) / sum(map(bool, about.values())) >= 0.9  # precision
    right = sum(len(about[memory] & planted[memory]) for memory in range(30))
    assert right / sum(map(len, planted)) >= 0.9  # recall over triggers
    assert right / sum(len(about[memory]) for memory in range(30)) >= 0.9  # precision over triggers
    # One topic, one pattern; and what it is said to be about is the topic.
    one = [found.filter((pl.col("memory") == memory) & (pl.col("kind") == "semantic")) for memory in range(30)]
    assert np.median([rows.height for rows in one]) == 1
    said = [re.findall(r"\w+", rows["description"][0].removeprefix("about:")) for rows in one if rows.height]
    correct = [word in topics[memory] for memory, words in enumerate(said) for word in words]
    assert np.mean(correct) >= 0.9
