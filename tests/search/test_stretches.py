"""The places of every prefix hold the words of its text, whatever tokens are: parts of words, of characters, spaces."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.search.database import CONTEXT, window_text
from mnemoscope.search.stretches import WordRows
from mnemoscope.search.text import prepare, split_words

RAW = [
    *(b" the", b" Par", b"is", b"ian", b" ", b"  ", b"\n", b".", b" (", b"os", b".path", b"", b"x1", b"_", b" caf"),
    *("é".encode(), "é".encode()[:1], "é".encode()[1:], "e\u0301".encode(), "\u0301".encode(), "我们".encode()),
    *("我".encode()[:2], "我".encode()[2:], " 🤖".encode(), "🤖".encode()[:3], "“".encode(), "\u00a0".encode()),
    *(b"\0", b"\x02", b"a b", b"longerthantwentyfourletters", "\u2003".encode(), " über".encode(), b"-", b"0"),
]  # fmt: skip
SPACED = RAW[:12]
SENTENCE = st.lists(st.integers(0, len(RAW) - 1), min_size=1, max_size=60) | st.lists(
    st.integers(0, len(SPACED) - 1), min_size=20, max_size=60
)


def check(sentences: list[list[int]], places: list[tuple[int, int]], *, spaced: bool) -> None:
    """`places` are sentence and position, sorted; the sentences are cut behind the last of each."""
    cut = [tokens[: max(p for s, p in places if s == number) + 1] for number, tokens in enumerate(sentences)]
    starts = np.cumsum([0, *map(len, cut)])[:-1]
    rows, positions = np.array(places).T
    builder = WordRows(RAW, spaced=spaced)
    half = len(sentences) // 2  # in two batches
    found: list[tuple[int, int]] = []
    for some in (range(half), range(half, len(sentences))):
        own = np.isin(rows, some)
        if some:
            tokens = np.concatenate([cut[number] for number in some]).astype(np.uint16)
            made = builder.add(tokens, starts[some] - starts[some[0]], rows[own] - some[0], positions[own])
            found += zip(*(ends.tolist() for ends in made), strict=True)
    stretches = builder.finish()
    word_at = {int(pair) & 0xFFFFFFFF: stretches.words[int(pair) >> 32] for pair in stretches.pairs}
    assert len(word_at) == len(stretches.pairs)
    assert stretches.words == sorted(set(word_at.values()), key=str.encode)
    for (row, position), (first, last) in zip(places, found, strict=True):
        begin = max(0, position - CONTEXT + 1)
        text = window_text(sentences[row][begin : position + 1], RAW, spaced=spaced, cut=begin > 0)
        assert [word_at[place] for place in range(first, last + 1)] == split_words([prepare(text)])[0]
    by_last = [first for _, _, first in sorted((last, at, first) for at, (first, last) in enumerate(found))]
    assert by_last == sorted(by_last)


@given(data=st.data(), spaced=st.booleans())
def test_the_words_of_a_prefix_are_those_of_its_text(data: st.DataObject, spaced: bool) -> None:
    sentences = data.draw(st.lists(SENTENCE, min_size=1, max_size=4))
    places = [
        (number, position)
        for number, tokens in enumerate(sentences)
        for position in sorted(data.draw(st.lists(st.integers(0, len(tokens) - 1), min_size=1, max_size=8)))
    ]
    check(sentences, places, spaced=spaced)


@pytest.mark.parametrize("spaced", [True, False])
def test_every_position_of_long_sentences(spaced: bool) -> None:
    draw = np.random.default_rng(3)
    sentences = [draw.integers(0, most, 80).tolist() for most in [len(RAW), len(SPACED), len(RAW)] * 4]
    check(sentences, [(number, position) for number in range(len(sentences)) for position in range(80)], spaced=spaced)


def test_a_sentence_is_stored_once() -> None:
    """Prefixes that end with a word share their sentence's row; one that ends within a word has its own."""
    builder = WordRows(RAW, spaced=True)
    sentence = np.array([0, 0, 1, 2, 3, 0], np.uint16)  # the the Par|is|ian the
    first, last = builder.add(sentence, np.array([0]), np.zeros(4, np.int64), np.array([0, 1, 4, 5]))
    assert (first.tolist(), last.tolist()) == ([1] * 4, [1, 2, 3, 4])
    assert len(builder.finish().pairs) == 4
    builder = WordRows(RAW, spaced=True)
    first, last = builder.add(sentence, np.array([0]), np.zeros(4, np.int64), np.array([3, 3, 4, 5]))
    assert (first.tolist(), last.tolist()) == ([6, 6, 1, 1], [8, 8, 3, 4])
    assert builder.finish().words == ["paris", "parisian", "the"]
