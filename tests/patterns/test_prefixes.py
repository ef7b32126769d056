"""What a prefix shows, read by eye through its description; and what memories share, counted."""

from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.reading import Reading
from mnemoscope.patterns.finding import describe, describe_words, quote
from mnemoscope.patterns.prefixes import PrefixBatch, count_longer, read_background, read_prefixes
from mnemoscope.patterns.significance import count_shared, groups_of
from mnemoscope.patterns.surface import Feature, read_spelling, split_key
from mnemoscope.patterns.words import Lexicon
from patterns.hand_prefixes import prefixes_of, triggers_of
from patterns.test_words import spelling_of
from support.pattern_atlas import Place, build

TEXTS = ["He", " lives", " (", "in", " Par", "is", ")", ' "', "since", " 1944", "\n", "", " new", " paris"]


def read(directory: Path, sentences: list[list[int]], places: list[Place]) -> tuple[PrefixBatch, Lexicon]:
    words = [[TEXTS[token] for token in tokens] for tokens in sentences]
    atlas = build(directory, words, layers=[[[]]], background=[(0, 0)], vocabulary=TEXTS)
    lexicon = Lexicon(read_spelling(atlas.vocabulary, atlas.table("sentences")))
    sentence, position = np.array(places, dtype=np.int64).T
    return read_prefixes(atlas, sentence, position=position, lexicon=lexicon), lexicon


def shown(prefixes: PrefixBatch, lexicon: Lexicon, prefix: int) -> set[str]:
    starts = prefixes.features.starts
    keys = prefixes.features.keys[starts[prefix] : starts[prefix + 1]].tolist()
    assert len(keys) == len(set(keys))
    return {describe(key, prefixes, showing=[prefix], lexicon=lexicon) for key in keys}


def test_everything_that_a_prefix_shows(tmp_path: Path) -> None:
    # He lives (in Paris ...
    prefixes, lexicon = read(tmp_path, [[0, 1, 2, 3, 4, 5, 6, 7]], [(0, 5)])
    assert shown(prefixes, lexicon, 0) == {
        *('ends in "Paris"', 'ends in "…is"', 'ends with "Paris"', 'ends with "in Paris"', 'ends with "(in Paris"'),
        *('ends with "lives (in Paris"', '"Par" just before the last token', '"in" two tokens before the last token'),
        *('"(" three tokens before the last token', '"lives" four tokens before the last token'),
        *('"He" five tokens before the last token', 'begins with "He"', 'begins with "He lives"'),
        *("last word ends in -s", "last word ends in -is", "last word ends in -ris", "last word begins with p-"),
        *("last word begins with pa-", "last word begins with par-", "last word is a capitalised word"),
        *("a preposition just before the last word", "the last token goes on with a word"),
        *("at most the first eight tokens", "inside ( )"),
    }


def test_short_prefixes_brackets_quotes_and_marks(tmp_path: Path) -> None:
    prefixes, lexicon = read(tmp_path, [[0, 1, 2, 3, 6, 7, 8, 9, 7, 10]], [(0, 0), (0, 4), (0, 7), (0, 8), (0, 9)])
    first = shown(prefixes, lexicon, 0)
    assert {"only the first token", "at most the first two tokens", "last word is a personal pronoun"} <= first
    assert not any("just before" in text for text in first)
    closed = shown(prefixes, lexicon, 1)
    assert {"last token is a closing bracket", "at most the first five tokens"} <= closed
    assert not any("inside" in text or text == "at most the first three tokens" for text in closed)
    quote = shown(prefixes, lexicon, 2)
    assert {"inside quotation marks", "last word is a year", "last word is a number"} <= quote
    assert "inside quotation marks" not in shown(prefixes, lexicon, 3)
    last = shown(prefixes, lexicon, 4)
    assert {"last token is a line break", 'ends in "\\n"', "punctuation just before the last word"} <= last


def test_a_token_without_text_is_named_by_its_number(tmp_path: Path) -> None:
    prefixes, lexicon = read(tmp_path, [[0, 11, 11]], [(0, 1), (0, 2)])
    assert "ends in token 11" in shown(prefixes, lexicon, 0)
    assert "ends with token 11 token 11" in shown(prefixes, lexicon, 1)
    assert not any(text.startswith("last ") for text in shown(prefixes, lexicon, 0))


def test_a_last_word_in_several_cases_is_one(tmp_path: Path) -> None:
    # in Paris; new paris
    prefixes, lexicon = read(tmp_path, [[3, 4, 5], [12, 13]], [(0, 2), (1, 1)])
    keys = [set(prefixes.features.keys[slice(*prefixes.features.starts[p : p + 2])].tolist()) for p in (0, 1)]
    both = {describe(key, prefixes, showing=[0, 1], lexicon=lexicon) for key in keys[0] & keys[1]}
    assert 'ends in "paris" in any case' in both
    assert 'ends in "paris"' not in both


def test_content_words_are_those_that_are_complete(tmp_path: Path) -> None:
    prefixes, lexicon = read(tmp_path, [[0, 1, 2, 3, 4, 5, 6, 13]], [(0, 4), (0, 5), (0, 7), (0, 0)])
    words = prefixes.words
    found = [
        [(lexicon.words[int(key)], int(ago)) for key, ago in zip(words.keys[a:b], words.ago[a:b], strict=True)]
        for a, b in zip(words.starts[:-1], words.starts[1:], strict=True)
    ]
    assert found == [[("lives", 3)], [("lives", 4), ("paris", 0)], [("lives", 6), ("paris", 2)], []]


class Stored:
    """Sentences of these tokens, as an atlas holds them."""

    path, reading = Path("stored"), Reading()

    def __init__(self, *sentences: list[int]) -> None:
        self._tokens = sentences

    def sentences(self, ids: list[int], *, columns: list[str]) -> pl.DataFrame:
        rows = {"sentence": ids, "tokens": [self._tokens[number] for number in ids]}
        return pl.DataFrame(rows, schema_overrides={"tokens": pl.List(pl.Int32)})


@pytest.mark.parametrize(
    ("tokens", "position", "wrong"),
    [
        ([0, 2], 1, ""),
        ([0, 3], 1, "holds a token that vocabulary.parquet does not list"),
        ([-1, 2], 1, "holds a token that vocabulary.parquet does not list"),
        ([0, 2], 2, "names position 2 of sentence 1, which has 2 tokens"),
        ([0, 2], -1, "names position -1 of sentence 1, which has 2 tokens"),
        ([], 0, "names position 0 of sentence 1, which has 0 tokens"),
    ],
)
def test_what_a_sentence_cannot_hold(tokens: list[int], position: int, wrong: str) -> None:
    """Of a vocabulary of three tokens."""
    atlas: Any = Stored([0, 1], tokens)
    lexicon = Lexicon(spelling_of([b"a", b" b", b" c"]))
    sentence, places = np.array([0, 1]), np.array([1, position])
    with pytest.raises(AtlasDamaged, match=wrong) if wrong else nullcontext():
        assert read_prefixes(atlas, sentence, position=places, lexicon=lexicon).length.tolist() == [2, 2]


def test_quoted_text() -> None:
    assert quote("x" * 60) == f'"{"x" * 60}"'
    assert describe_words([*"abcdef"]) == "about: a, b, c, d, e, f"
    assert quote('say "x"') == "'say \"x\"'"
    assert quote("a\tb\x1b") == '"a\\tb\\x1b"'
    assert quote("x" * 99) == f'"…{"x" * 60}"'
    assert describe_words(["virus"]) == 'mentions "virus"'
    assert describe_words(["a", "b"]) == "about: a, b"
    assert describe_words([*"abcdefg"]) == "about: a, b, c, d, e, f, ..."


def test_a_background_in_classes_of_richness() -> None:
    """Prefixes of 0, 1, 2, 3 and 2 words: of those with words, quantiles lie at 1.375, 1.75, 2, 2.25 and above."""
    words = ((), (1,), (1, 2), (1, 2, 3), (2, 4))
    background = read_background(prefixes_of([(number, (), own) for number, own in enumerate(words, 1)]))
    assert background.cuts.tolist() == pytest.approx([1.375, 1.75, 2, 2.25, 2.625, 2.85, 2.955])
    assert background.richness.tolist() == background.class_of(np.array([0, 1, 2, 3, 2])).tolist() == [0, 0, 3, 7, 3]
    assert background.in_class.tolist() == [2, 0, 0, 2, 0, 0, 0, 1]
    assert background.words.keys.tolist() == [1, 2, 3, 4]
    assert background.words.counts.tolist() == [3, 3, 1, 1, 0]
    seen = [0, 3, 7]
    assert background.rates[:, seen].tolist() == [[0.5, 0.5, 1], [0, 1, 1], [0, 0, 1], [0, 0.5, 0], [0, 0, 0]]
    assert background.weights[:, seen] == pytest.approx(
        np.array([[0.5, 0.25, 1 / 3], [0, 0.5, 1 / 3], [0, 0, 1 / 3], [0, 0.25, 0], [0, 0, 0]])
    )
    unseen = np.delete(np.arange(8), seen)
    assert not background.rates[:, unseen].any()
    assert not background.weights[:, unseen].any()
    mean = [(1 + 1 / 2 + 1 / 3) / 5, (1 / 2 + 1 / 3 + 1 / 2) / 5, 1 / 3 / 5, 1 / 2 / 5, 0]
    assert background.mean_weights.tolist() == pytest.approx(mean)
    assert background.words.showing(2).tolist() == [2, 3, 4]
    assert background.words.showing(4).tolist() == [4]
    assert background.words.showing(9).tolist() == []
    assert count_longer(background.lengths, np.arange(6)).tolist() == [5, 4, 3, 2, 1, 0]


def test_a_background_without_words_or_prefixes() -> None:
    background = read_background(prefixes_of([(2, (), ()), (1, (), ())]))
    assert (background.size, background.cuts.size, background.in_class.tolist()) == (2, 0, [2])
    assert background.words.count_of(np.array([3], dtype=np.uint64)).tolist() == [0]
    assert background.words.showing(3).tolist() == []
    nothing = read_background(prefixes_of([]))
    longer = count_longer(nothing.lengths, np.arange(1)).tolist()
    assert (nothing.size, longer, nothing.mean_weights.tolist()) == (0, [0], [0.0])


def test_words_that_do_not_count_leave_the_others_where_they_are() -> None:
    whole = prefixes_of([(9, (8,), (1, 2)), (9, (), ()), (9, (), (2, 3, 1))], ago=[(4, 0), (), (5, 3, 1)])
    found = whole.without_words(np.array([2, 7], dtype=np.uint64))
    assert (found.words.starts.tolist(), found.words.keys.tolist()) == ([0, 1, 1, 3], [1, 3, 1])
    assert (found.words.ago.tolist(), found.words.prefix.tolist()) == ([4, 3, 1], [0, 2, 2])
    assert found.features is whole.features


def test_groups_and_what_they_share_are_those_of_a_loop() -> None:
    """Random triggers of a few sentences, some with the prefix of another, and random keys of every prefix."""
    random = np.random.default_rng(4)
    rows = []
    for memory in (2, 3, 7):
        for rank in range(random.integers(5, 12)):
            group = int(random.choice([rank, max(0, rank - 1)]))
            rows.append((memory, 1, rank, int(random.integers(6)), int(random.integers(3)), group))
    groups, sentence, position = groups_of(triggers_of([rows[place] for place in random.permutation(len(rows))]))
    keys = [sorted(random.choice(9, random.integers(0, 5), replace=False).tolist()) for _ in range(sentence.size)]
    found = count_shared(groups, prefixes_of([(1, own, ()) for own in keys]).features)
    lengths = np.array([random.integers(1, 4) for _ in range(sentence.size)])

    places = list(zip(sentence.tolist(), position.tolist(), strict=True))
    assert places == sorted({(s, p) for _, _, rank, s, p, group in rows if rank == group})
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    long = {}
    for place, memory in enumerate((2, 3, 7)):
        own = [row for row in rows if row[0] == memory and row[2] == row[5]]
        seen: set[int] = set()
        long[place] = 0
        for number, (_, _, _, at, where, _) in enumerate(own):
            prefix = places.index((at, where))
            long[place] += at not in seen and lengths[prefix] > 1
            for key in keys[prefix]:
                count, mask = expected.get((place, key), (0, 0))
                expected[place, key] = (count + (at not in seen), mask | 1 << number)
            seen.add(at)
    columns = (found.memory, found.key, found.count, found.mask)
    got = {(int(memory), int(key)): (int(count), int(mask)) for memory, key, count, mask in zip(*columns, strict=True)}
    assert got == expected
    assert found.per_memory(3).tolist() == [sum(place == own for place, _ in expected) for own in range(3)]
    assert groups.count_long(lengths, 1).tolist() == list(long.values())


def slow_features(tokens: list[int]) -> set[tuple[object, ...]]:
    """What a prefix shows at fixed places, without a hash."""
    size = len(tokens)
    found: set[tuple[object, ...]] = {(Feature.NGRAM, n - 1, *tokens[-n:]) for n in range(1, 6) if size >= n}
    found |= {(Feature.DISTANCE, step - 1, tokens[-1 - step]) for step in range(1, 8) if size > step}
    found |= {(Feature.BEGINNING, n - 1, *tokens[:n]) for n in (1, 2) if size >= n}
    return found | {(Feature.LENGTH, 0, short) for short in (1, 2, 3, 5, 8) if size <= short}


def test_prefixes_share_a_key_just_where_they_share_what_it_stands_for(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    sentences = [random.integers(0, 3, random.integers(1, 12)).tolist() for _ in range(25)]
    places = [(number, int(random.integers(len(tokens)))) for number, tokens in enumerate(sentences)]
    prefixes, _ = read(tmp_path, sentences, places)
    keys, slow = [], []
    for number, (sentence, position) in enumerate(places):
        own = prefixes.features.keys[slice(*prefixes.features.starts[number : number + 2])].tolist()
        families = {Feature.NGRAM, Feature.DISTANCE, Feature.BEGINNING, Feature.LENGTH}
        keys.append({key for key in own if split_key(key)[0] in families})
        slow.append(slow_features(sentences[sentence][: position + 1]))
        assert {split_key(key)[:2] for key in keys[-1]} == {one[:2] for one in slow[-1]}
    for one, other in combinations(range(len(places)), 2):
        shared = sorted(split_key(key)[:2] for key in keys[one] & keys[other])
        assert shared == sorted(both[:2] for both in slow[one] & slow[other])
