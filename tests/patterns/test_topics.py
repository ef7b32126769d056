"""The bet on a shared vocabulary, worked out by hand and tried on random words; and topics read by eye."""

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from mnemoscope.patterns import topics
from mnemoscope.patterns.prefixes import read_background
from mnemoscope.patterns.significance import log10_tail
from patterns.hand_prefixes import prefixes_of

Bools = NDArray[np.bool_]


def held_by(*groups: str) -> tuple[list[str], Bools]:
    """[words, groups] of prefixes that are written as letters."""
    words = sorted(set("".join(groups)))
    return words, np.array([[word in group for group in groups] for word in words])


def slow_stake(groups: list[list[int]], shares: Bools, background: int) -> float:
    """The stake bet by bet, prefix by prefix and word by word; shares are `[word, group]`."""
    left = []
    known = [(number, words) for number, words in enumerate(groups) if words]
    for bet in topics.BETS:
        stake = 1.0
        for place, (number, words) in enumerate(known[1:], 1):
            surprises = []
            for word in words:
                before = sum(1 / len(other) for _, other in known[:place] if word in other)
                expected = (shares[word, number] * background + before) / (background + place)
                surprises.append(before / place / expected if before else 0.0)
            stake *= 1 - bet + bet * sum(surprises) / len(surprises)
        left.append(stake)
    return float(np.log10(sum(left) / len(left)))


def test_the_stake_is_that_of_a_loop() -> None:
    random = np.random.default_rng(2)
    for _ in range(30):
        held = random.random((6, 9)) < random.choice([0.15, 0.4])
        shares = random.uniform(0.001, 0.2, held.shape)
        background = int(random.choice([1, 30, 20_000]))
        groups = [np.flatnonzero(own).tolist() for own in held.T]
        expected = slow_stake(groups, shares, background)
        assert topics.log10_stake(held, shares, background=background) == pytest.approx(expected, abs=1e-9)


def test_nothing_shared_loses_and_nothing_to_bet_on_keeps() -> None:
    _, held = held_by("ab", "cd", "ef")
    lost = np.log10(np.mean([(1 - bet) ** 2 for bet in topics.BETS]))
    assert topics.log10_stake(held, np.full((6, 3), 0.01), background=100) == pytest.approx(lost)
    _, held = held_by("ab", "", "")
    assert topics.log10_stake(held, np.full((2, 3), 0.01), background=100) == 0.0
    assert topics.log10_stake(np.zeros((0, 5), dtype=np.bool_), np.zeros((0, 5)), background=100) == 0.0


def test_without_a_background_nothing_is_won() -> None:
    """Every word is as expected as it was frequent, so that sharing it is no surprise."""
    _, held = held_by("a", "a", "a", "a")
    assert topics.log10_stake(held, np.zeros((1, 4)), background=0) == pytest.approx(0.0)
    # Without a background a new word is expected as little as it was seen: nothing, and nothing is won.
    _, held = held_by("a", "b")
    lost = np.log10(np.mean([1 - bet for bet in topics.BETS]))
    assert topics.log10_stake(held, np.zeros((2, 2)), background=0) == pytest.approx(lost)


def test_a_vocabulary_by_hand() -> None:
    """Groups hold words 1 and 2, 1 and 9, and 2 of a sentence that was there before; the background is that of
    test_prefixes.py: prefixes of the words -, 1, 1 2, 1 2 3 and 2 4, eight in all.
    """
    words = ((), (1,), (1, 2), (1, 2, 3), (2, 4))
    background = read_background(prefixes_of([(9, (), own) for own in words]))
    keys, place = np.array([1, 2, 1, 9, 2], dtype=np.uint64), np.array([0, 0, 1, 1, 2])
    counted = np.array([True, True, False])
    found = topics.read_vocabulary(keys, place, counted=counted, background=background)
    assert found.keys.tolist() == [1, 2, 9]
    assert found.held.tolist() == [[True, True, False], [True, False, True], [False, True, False]]
    # Among the words of prefixes with two words, or with one, or of any where that is more.
    mean = [(1 + 1 / 2 + 1 / 3) / 5, (1 / 2 + 1 / 3 + 1 / 2) / 5]
    assert found.shares == pytest.approx(np.array([[mean[0], mean[0], 0.5], [0.5, 0.5, mean[1]], [0, 0, 0]]))
    # Of prefixes with two words half hold 1 and all hold 2; of all three in five, and the groups that count have 2
    # words where the background has 1.6.
    assert found.rates.tolist() == pytest.approx([0.6 * 1.25, 1, 0])
    # Word 1 is in two groups that count, and in 3 of as many prefixes as give that rate; others are in one.
    assert found.log10_p.tolist() == [pytest.approx(log10_tail(2, 2, 3, 3 / 0.75)), 0, 0]
    # What the background lacks, in groups of one word each: 5 prefixes are as good as 8.
    other = topics.read_vocabulary(keys[[3, 3, 3]], np.array([0, 1, 2]), counted=counted, background=background)
    assert other.log10_p.tolist() == [pytest.approx(log10_tail(2, 2, 0, 8.0))]


def found(
    *groups: str,
    counted: list[bool] | None = None,
    rate: float = 0.001,
    limit: float = -2.0,
    least: Mapping[str, float] | None = None,
) -> tuple[list[str], list[topics.Topic]]:
    """The topics among prefixes written as letters, of a language whose words are all equally rare.

    A word in n prefixes has a log10 of its probability of -2 n, unless `least` says another.
    """
    words, held = held_by(*groups)
    counts = held.sum(axis=1)
    log10_p = [(least or {}).get(word, -2.0 * count) for word, count in zip(words, counts, strict=True)]
    vocabulary = topics.TopicVocabulary(
        keys=np.arange(len(words), dtype=np.uint64),
        held=held,
        counted=np.array(counted if counted is not None else [True] * len(groups)),
        shares=np.full(held.shape, rate / 5),
        rates=np.full(len(words), rate),
        log10_p=np.where(counts >= 2, log10_p, 0.0),
    )
    return words, topics.find_topics(vocabulary, background=20_000, limit=limit)


def read(words: list[str], topic: topics.Topic) -> tuple[str, list[int]]:
    return "".join(words[word] for word in topic.words), np.flatnonzero(topic.groups).tolist()


def test_words_that_occur_together_are_a_topic_and_one_word_is_none() -> None:
    words, all_found = found("abx", "bcy", "cdz", "dap", "acq", "r", "s")
    assert [read(words, topic) for topic in all_found] == [("acbd", [0, 1, 2, 3, 4])]
    assert all_found[0].log10_p < -2
    assert found("apqr", "astu", "avwx", "ayzk")[1] == []


def test_of_what_hangs_together_the_widest_word_is_that_of_most_of_its_groups() -> None:
    """A common word and a rare one in three groups, the rare one in two more: the first of them is the widest there.

    Without the common word the rare one still is a surprise; without the rare one nothing would be.
    """
    words, held = held_by("ab", "ab", "ab", "bx", "by")
    vocabulary = topics.TopicVocabulary(
        keys=np.arange(4, dtype=np.uint64),
        held=held,
        counted=np.ones(5, dtype=np.bool_),
        shares=np.tile(np.array([[0.3], [0.0002], [0.0002], [0.0002]]), 5),
        rates=np.array([0.3, 0.001, 0.001, 0.001]),
        log10_p=np.array([-3.0, -9.0, 0.0, 0.0]),
    )
    (topic,) = topics.find_topics(vocabulary, background=20_000, limit=-2.0)
    assert "".join(words[word] for word in topic.words) == "ba"


def test_two_topics_are_two() -> None:
    words, all_found = found("abp", "bcq", "car", "abcs", "xyt", "yzu", "zxv", "xyzw")
    # Of two that are as large the first comes first; a larger one comes before both.
    assert [read(words, topic) for topic in all_found] == [("abc", [0, 1, 2, 3]), ("xyz", [4, 5, 6, 7])]
    words, all_found = found("abp", "bcq", "car", "xyt", "yzu", "zxv", "xyzw")
    assert [read(words, topic) for topic in all_found] == [("xyz", [3, 4, 5, 6]), ("abc", [0, 1, 2])]


def test_only_words_that_are_noticed_belong_to_a_topic() -> None:
    """A word that recurs counts from a probability of 1 in 100 on; prefixes then hold but one word of the topic."""
    for least, said in ((-2.0, "acbd"), (-1.99, "acb")):
        words, (topic,) = found("abx", "bcy", "cdz", "dap", "acq", least={"d": least})
        assert read(words, topic) == (said, [0, 1, 2, 3, 4])


def test_a_topic_is_as_unlikely_as_the_stake_says_and_the_limit_asks() -> None:
    groups = ("abx", "bcy", "cdz", "dap", "acq")
    (topic,) = found(*groups)[1]
    _, held = held_by(*groups)
    assert topic.log10_p == pytest.approx(-topics.log10_stake(held, np.full(held.shape, 0.001 / 5), background=20_000))
    assert found(*groups, limit=topic.log10_p - 1e-9)[1] == []
    assert found("ab", "ab", limit=0.0)[1] == []  # two prefixes are no pattern, however alike


def test_one_word_of_a_rare_topic_is_enough_and_of_a_common_one_is_not() -> None:
    groups = ("ab", "bc", "cd", "da", "ac", "bd", "apqr", "stuv", "wxyz")
    assert read(*_only(found(*groups))) == ("abcd", [0, 1, 2, 3, 4, 5, 6])
    assert _only(found(*groups))[1].enough == 1
    assert read(*_only(found(*groups, rate=0.1))) == ("abcd", [0, 1, 2, 3, 4, 5])
    # Two are enough: in a prefix of a sentence that was there before, which is no evidence.
    words, topic = _only(found(*groups, "adyk", "adcm", counted=[True] * 9 + [False] * 2, rate=0.1))
    assert read(words, topic) == ("adcb", [0, 1, 2, 3, 4, 5, 9, 10])  # the words that most hold come first
    assert topic.enough == 2


def _only(result: tuple[list[str], list[topics.Topic]]) -> tuple[list[str], topics.Topic]:
    words, (topic,) = result
    return words, topic


def test_prefixes_of_one_sentence_are_explained_but_are_no_evidence() -> None:
    groups = ("ab", "bc", "ca", "abc", "abcd")
    words, all_found = found(*groups, counted=[True, True, True, True, False])
    assert read(words, all_found[0]) == ("abc", [0, 1, 2, 3, 4])
    assert found("abc", "abc", "abc", "abc", counted=[True, False, False, False])[1] == []


def slow_core(held: Bools, noticed: Bools) -> tuple[set[int], set[int]]:
    """What lacks a second partner is left out until nothing does; then the largest part that hangs together."""
    words = set(np.flatnonzero(noticed).tolist())
    groups = set(range(held.shape[1]))
    while True:
        fewer = {word for word in words if held[word, sorted(groups)].sum() >= 2}
        left = {group for group in groups if held[sorted(fewer), group].sum() >= 2}
        if (fewer, left) == (words, groups):
            break
        words, groups = fewer, left
    best: tuple[set[int], set[int]] = (set(), set())
    for word in sorted(words):
        some, before = {word}, set[int]()
        while some != before:
            before = set(some)
            covered = {group for group in groups if held[sorted(some), group].any()}
            some |= {other for other in words if held[other, sorted(covered)].any()}
        if len(covered) > len(best[1]):
            best = some, covered
    return best


def test_what_hangs_together_is_what_sets_say() -> None:
    random = np.random.default_rng(6)
    largest = set()
    for _ in range(200):
        held = random.random((9, 10)) < random.choice([0.12, 0.2, 0.3])
        noticed = random.random(9) < 0.8
        words, groups = topics.find_core(held, noticed)
        assert (set(words.tolist()), set(np.flatnonzero(groups).tolist())) == slow_core(held, noticed)
        largest.add(int(groups.sum()))
    assert len(largest) > 5
