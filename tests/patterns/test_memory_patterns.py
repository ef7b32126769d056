"""The patterns of memories whose prefixes show what a test writes down: every number that stands beside one."""

import numpy as np
import pytest

from mnemoscope.patterns.memory_patterns import Semantic, semantic_patterns, shallow_patterns
from mnemoscope.patterns.prefixes import read_background
from mnemoscope.patterns.significance import groups_of, lift, log10_tail
from mnemoscope.patterns.surface import Feature, small_key
from patterns.hand_prefixes import Shown, one_prefix_each, prefixes_of

WORD, PAIR, TRIPLE = (small_key(Feature.WORD, 5), small_key(Feature.NGRAM + 1, 7), small_key(Feature.NGRAM + 2, 9))
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
        assert (by_key[key].mask, by_key[key].shown.tolist()) == (masks[key], list(shown[key]))
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


SIZE = 400
WORDS_OF_BACKGROUND: list[Shown] = [(9, (), (1000 + n, 2000 + n)) for n in range(SIZE)]
"""Every prefix has two words that no other has."""


def semantic(words: list[tuple[int, ...]], *, tried: int = 10, explained: list[int] | None = None) -> list[Semantic]:
    """The semantic patterns of one memory, each group of which holds these words; they end at the last token."""
    groups, *_ = groups_of(one_prefix_each(len(words)))
    return semantic_patterns(
        groups,
        prefixes_of([(9, (), own) for own in words]),
        background=read_background(prefixes_of(WORDS_OF_BACKGROUND)),
        explained=np.array(explained or [0] * len(words)),
        tried=np.array([tried]),
        fields={},
    ).get(0, [])


def test_a_word_that_is_explained_where_it_stands_is_not_mentioned() -> None:
    words = [(7, 50 + n) for n in range(10)]
    assert semantic(words)
    assert not semantic(words, explained=[1] * 10)
    (found,) = semantic(words, explained=[1] * 6 + [0b10] * 4)  # the token before the last is another
    assert found.candidate.mask == 0b1111000000
    assert not semantic(words, explained=[1] * 8 + [0] * 2)  # two groups are no pattern
