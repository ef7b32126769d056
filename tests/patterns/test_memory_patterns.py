"""The patterns of memories whose prefixes show what a test writes down: every number that stands beside one."""

import numpy as np
import pytest

from mnemoscope.patterns.memory_patterns import Semantic, explained_tokens, mask_of, semantic_patterns, shallow_patterns
from mnemoscope.patterns.prefixes import read_background
from mnemoscope.patterns.significance import Candidate, groups_of, lift, log10_tail
from mnemoscope.patterns.surface import Feature, small_key
from patterns.hand_prefixes import Shown, one_prefix_each, prefixes_of

WORD, PAIR, TRIPLE = (
    small_key(Feature.WORD, 5),
    small_key(Feature.NGRAM + 1, 7),
    small_key(Feature.NGRAM + 2, 9),
)
# Of 100 prefixes 40 have one token, 60 have two or more and 20 of these three; 30 show the word, 10 the pair.
BACKGROUND: list[Shown] = [
    (1 if n < 40 else 2 if n < 80 else 3, [WORD] * (n < 30) + [PAIR] * (40 <= n < 50), ()) for n in range(100)
]
# Of ten groups two have one token and four three; nine show the word, six the pair, three the three tokens.
GROUPS: list[Shown] = [
    (1 if n < 2 else 2 if n < 6 else 3, [WORD] * (n < 9) + [PAIR] * (2 <= n < 8) + [TRIPLE] * (n > 6), ())
    for n in range(10)
]
TAILS = {WORD: (9, 10, 30, 100.0), PAIR: (6, 8, 10, 60.0), TRIPLE: (3, 4, 0, 20.0)}
"""In how many groups, of how many that are long enough; and so in the background."""


def test_shallow_patterns_are_those_that_are_unlikely_among_prefixes_as_long() -> None:
    groups, *_ = groups_of(one_prefix_each(10))
    background = read_background(prefixes_of(BACKGROUND))
    none = np.zeros(1, dtype=np.int64)
    found = shallow_patterns(groups, prefixes_of(GROUPS), background=background, words=none)
    assert found.tried.tolist() == [3]
    shown = {WORD: range(30), PAIR: range(40, 50), TRIPLE: range(0)}
    masks = {WORD: 0b0111111111, PAIR: 0b0011111100, TRIPLE: 0b1110000000}
    by_key = {one.key: one for one in found.unlikely[0]}
    assert by_key.keys() == TAILS.keys()
    for key, numbers in TAILS.items():
        assert by_key[key].log10_p == log10_tail(*numbers)
        assert by_key[key].lift == lift(*numbers)
        assert by_key[key].mask == masks[key]
        assert by_key[key].shown.tolist() == list(shown[key])
    assert {key: one.tokens for key, one in by_key.items()} == {WORD: 1, PAIR: 2, TRIPLE: 3}
    assert found.kept.keys() == {0}


@pytest.mark.parametrize("key", [WORD, PAIR, TRIPLE])
def test_all_that_is_tried_is_corrected_for(key: int) -> None:
    """Three features and so many words: the last number of trials at which the pattern stands, and one more."""
    groups, *_ = groups_of(one_prefix_each(10))
    most = int(0.01 / 10 ** log10_tail(*TAILS[key]))
    for tried, stands in ((most, True), (most + 1, False)):
        words = np.array([tried - 3])
        background = read_background(prefixes_of(BACKGROUND))
        found = shallow_patterns(groups, prefixes_of(GROUPS), background=background, words=words)
        assert (key in [one.key for one in found.unlikely.get(0, [])]) is stands
        assert found.tried.tolist() == [tried]


def test_tokens_that_patterns_explain() -> None:
    """Bit a is the token a places before the last; of memory 1, whose groups begin at 3, the second and third group."""

    def candidate(family: int, mask: int) -> Candidate:
        return Candidate(small_key(family, 1), mask, -9.0, 1.0, 1, np.zeros(0, dtype=np.int64))

    groups, *_ = groups_of(one_prefix_each(3, 4))
    bits = explained_tokens(groups, {
        0: [candidate(Feature.WORD, 0b001), candidate(Feature.CLASS, 0b111), candidate(Feature.BEGINNING, 0b111)],
        1: [candidate(Feature.NGRAM + 2, 0b0010), candidate(Feature.DISTANCE + 3, 0b0110), candidate(Feature.WORD, 2)],
    })  # fmt: skip
    assert bits.tolist() == [0b1, 0, 0, 0, 0b10111, 0b10000, 0]
    assert explained_tokens(groups, {}).tolist() == [0] * 7


def test_groups_as_bits() -> None:
    assert mask_of(np.array([True, False, True, True])) == 0b1101
    assert mask_of(np.zeros(3, dtype=np.bool_)) == 0


SIZE = 400
WORDS_OF_BACKGROUND: list[Shown] = [(9, (), (1000 + n, 2000 + n)) for n in range(SIZE)]
"""Every prefix has two words that no other has."""


def semantic(words: list[tuple[int, ...]], *, tried: int = 10, explained: list[int] | None = None) -> list[Semantic]:
    """The semantic patterns of one memory, each group of which holds these words; they end at the last token."""
    groups, *_ = groups_of(one_prefix_each(len(words)))
    return semantic_patterns(
        groups, prefixes_of([(9, (), own) for own in words]),
        background=read_background(prefixes_of(WORDS_OF_BACKGROUND)),
        explained=np.array(explained or [0] * len(words)), tried=np.array([tried]),
    ).get(0, [])  # fmt: skip


def test_a_word_that_recurs_by_itself() -> None:
    """Of ten groups of two words eight hold word 7, of which no background prefix holds one."""
    words = [(7, 50 + n) if n < 8 else (50 + n, 70 + n) for n in range(10)]
    (found,) = semantic(words)
    assert (found.words, found.candidate.key, found.candidate.tokens) == ((7,), 7, 1)
    assert found.candidate.mask == 0b0011111111
    assert found.candidate.log10_p == pytest.approx(log10_tail(8, 10, 0, float(SIZE)))
    assert found.candidate.lift == pytest.approx(0.8 * (SIZE + 1))
    assert found.candidate.shown.size == 0
    # It is one of so many that are tried.
    most = int(0.01 / 10**found.candidate.log10_p)
    assert semantic(words, tried=most)
    assert not semantic(words, tried=most + 1)


def test_a_word_that_is_explained_where_it_stands_is_not_mentioned() -> None:
    words = [(7, 50 + n) for n in range(10)]
    assert semantic(words)
    assert not semantic(words, explained=[1] * 10)
    (found,) = semantic(words, explained=[1] * 6 + [0b10] * 4)  # the token before the last is another
    assert found.candidate.mask == 0b1111000000
    assert not semantic(words, explained=[1] * 8 + [0] * 2)  # two groups are no pattern


def test_a_topic_comes_with_words_beside_it() -> None:
    """Six groups hold two of the words 1, 2 and 3 each; four others hold 9, which no topic explains; 4 is in two."""
    topic = [(1, 2), (2, 3), (1, 3)] * 2
    words = [*topic, *((9, 50 + n) for n in range(4)), (4, 60), (4, 61)]
    found = semantic(words)
    assert [set(one.words) for one in found] == [{1, 2, 3}, {9}]
    about, word = (one.candidate for one in found)
    assert (about.key, about.tokens, about.mask) == (-1, 0, 0b000000111111)
    assert (word.key, word.mask) == (9, 0b001111000000)
    # Half of the triggers, and of the background, whose every prefix is as rich, nothing and one more.
    assert about.lift == pytest.approx(0.5 * (SIZE + 1))
    assert about.log10_p <= -2
    assert word.lift == pytest.approx(4 / 12 * (SIZE + 1))


def test_memories_with_too_little_to_share_are_passed_over() -> None:
    """Two groups, or two words, are no pattern; the memory after them has its own."""
    groups, *_ = groups_of(one_prefix_each(2, 10, 4))
    words: list[Shown] = [(9, (), (7,))] * 2 + [(9, (), (7, 50 + n)) for n in range(10)] + [(9, (), ())] * 4
    found = semantic_patterns(
        groups, prefixes_of(words), background=read_background(prefixes_of(WORDS_OF_BACKGROUND)),
        explained=np.zeros(16, dtype=np.int64), tried=np.array([10, 10, 10]),
    )  # fmt: skip
    assert {memory: [one.words for one in own] for memory, own in found.items()} == {1: [(7,)]}
