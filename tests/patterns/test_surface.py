"""Keys of features, what they say of themselves, and how they are described."""

import numpy as np
import pytest

from mnemoscope.patterns.finding import describe
from mnemoscope.patterns.surface import Feature, hash_keys, small_key, split_key, tokens_said, window_offsets
from mnemoscope.patterns.words import Lexicon
from patterns.hand_prefixes import prefixes_of
from patterns.test_words import spelling_of

# Family, which of its kinds, the tokens that it says in full, and the position that a prefix must have for it.
KINDS = [
    *((Feature.NGRAM, n, n + 1, n) for n in range(5)),
    *((Feature.DISTANCE, step, 1, step + 1) for step in range(7)),
    (Feature.BEGINNING, 0, 1, 0),
    (Feature.BEGINNING, 1, 2, 1),
    (Feature.WORD, 0, 1, 0),
    *((family, 0, 0, 0) for family in (Feature.ENDING, Feature.START, Feature.CLASS, Feature.CLASS_BEFORE)),
    (Feature.CONTINUES, 0, 0, 0),
    (Feature.LENGTH, 0, 0, 0),
    *((Feature.INSIDE, row, 0, 0) for row in range(5)),
]


@pytest.mark.parametrize(("family", "kind", "said", "least"), KINDS)
def test_what_a_key_says_of_its_feature(family: Feature, kind: int, said: int, least: int) -> None:
    for value in (0, 1, (1 << 58) - 1):
        key = small_key(family + kind, value)
        assert split_key(key) == (family, kind, value)
        assert tokens_said(key) == said
        assert window_offsets(np.array([key, key], dtype=np.uint64)).tolist() == [least, least]


def test_hashed_keys_are_of_their_family_and_differ_where_values_do() -> None:
    small = np.arange(1000, dtype=np.uint64)
    values = np.concatenate([small, small + np.uint64(2**40), small + np.uint64(2**63)])
    keys = hash_keys(Feature.DISTANCE + 6, values)
    assert len(set(keys.tolist())) == 3000
    assert {split_key(key)[:2] for key in keys.tolist()} == {(Feature.DISTANCE, 6)}


def test_families_have_room_for_their_kinds() -> None:
    numbers = [family + kind for family, kind, *_ in KINDS]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 64


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (small_key(Feature.INSIDE, 0), "inside ( )"),
        (small_key(Feature.INSIDE + 1, 0), "inside [ ]"),
        (small_key(Feature.INSIDE + 2, 0), "inside { }"),
        (small_key(Feature.INSIDE + 3, 0), "inside “ ”"),
        (small_key(Feature.INSIDE + 4, 0), "inside quotation marks"),
        (small_key(Feature.LENGTH, 1), "only the first token"),
        (small_key(Feature.LENGTH, 2), "at most the first two tokens"),
        (small_key(Feature.LENGTH, 8), "at most the first eight tokens"),
        (small_key(Feature.CONTINUES, 0), "the last token goes on with a word"),
        (small_key(Feature.ENDING, 0), "last word ends in -ing"),
        (small_key(Feature.START, 1), "last word begins with un-"),
        (small_key(Feature.CLASS, 2), "last word is a month"),
        (small_key(Feature.CLASS, 3), "last token is a dash"),
        (small_key(Feature.CLASS, 4), "last token is punctuation"),
        (small_key(Feature.CLASS_BEFORE, 2), "a month just before the last word"),
    ],
)
def test_features_in_words(key: int, said: str) -> None:
    lexicon = Lexicon(spelling_of([b"a"]), ["ing", "un", "a month", "a dash", "punctuation"])
    assert describe(key, prefixes_of([(1, (), ())]), showing=[0], lexicon=lexicon) == said
