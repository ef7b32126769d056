"""Searching triggers against FTS5, asked of every prefix's text, where tokens are parts of words and of characters."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.errors import SearchError
from mnemoscope.search import Index, open_index
from mnemoscope.search.arrays import write_arrays
from mnemoscope.search.database import CONTEXT, EVERYWHERE, MOST_ROWS, TABLES, window_text
from mnemoscope.search.postings import pack
from mnemoscope.search.stretches import WordRows
from mnemoscope.search.text import find_matches, parse_query
from mnemoscope.search.trigger_words import TriggerWords
from search.conftest import LAYERS, build_random_atlas
from search.scan import Scan

RAW = [
    *(b" the", b" of", b" Par", b"is", b"ian", b" a", b"s", b" os", b".path", b".", b"\n", b" x", b"1", "é".encode()),
    *("é".encode()[:1], "é".encode()[1:], b" caf", "我".encode(), "们".encode(), "们".encode()[:2], "🤖".encode()),
    *(b"_", b" (", "“".encode(), "\u0301".encode(), "\u00a0".encode(), b"a b", b" thermo", b"stat", "𞤀".encode()),
    *(f" word{number}".encode() for number in range(12)),
]  # fmt: skip
TERMS = [
    "the", "of", "par", "paris", "parisian", "pari*", "par*", '"of the"', '"the of"', '"the par"*', '"of the of"', "os",
    "os.path", '"os.pa"*', "os*", "x1", "th*", "é", "cafe", "caf*", "我", "我们", "我们我", "🤖", "🤖🤖", "�", "�*",
    "ian", '"is a"', "a", "as", "as*", "b", '"a b"', "therm*", "thermostat", "stat", "𞤀", "word1", "word1*",
    '"word1 the"', "nothing", "not*", "s s", '"s s"', "_x", "paré", "“the”",
]  # fmt: skip


class Reference:
    """The text of every different positive prefix, and which of them FTS5 finds."""

    def __init__(self, atlas: Path) -> None:
        scan = Scan(atlas, LAYERS)
        self.names: list[tuple[int, int, int]] = []
        self.texts: list[str] = []
        for layer, rows in scan.triggers.items():
            for row in rows:
                if row["sign"] == 1 and row["prefix_group"] == row["rank"]:
                    begin = max(0, row["position"] - CONTEXT + 1)
                    tokens = scan.sentences[row["sentence"]]["tokens"][begin : row["position"] + 1]
                    self.names.append((layer, row["memory"], row["rank"]))
                    self.texts.append(window_text(tokens, scan.raw, spaced=True, cut=begin > 0))

    def find(self, text: str, layers: list[int]) -> list[tuple[str, int, int]]:
        """Memory, number of prefixes, best rank; in the order of the answer."""
        found: dict[tuple[int, int], list[int]] = {}
        for number in find_matches(self.texts, parse_query(text)):
            layer, memory, rank = self.names[number]
            if layer in layers:
                found.setdefault((layer, memory), []).append(rank)
        best = sorted(found, key=lambda place: (-len(found[place]), min(found[place]), place))
        return [(f"L{layer}.M{memory}", len(found[layer, memory]), min(found[layer, memory])) for layer, memory in best]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_atlas(tmp_path_factory.mktemp("messy"), raw=RAW)


@pytest.fixture(scope="module")
def reference(atlas: Path) -> Reference:
    return Reference(atlas)


@pytest.fixture(scope="module")
def index(atlas: Path) -> Iterator[Index]:
    with open_index(atlas) as opened:
        yield opened


def ask(index: Index, text: str, layers: list[int]) -> list[tuple[str, int, int | None]]:
    result = index.search(text, fields=["triggers"], layers=layers, limit=1000)
    assert result.exact
    assert result.total == len(result.hits)
    for hit in result.hits:
        assert any(matched for _, matched in hit.parts)
    return [(str(hit.memory), hit.count, hit.rank) for hit in result.hits]


@pytest.mark.parametrize("term", TERMS)
def test_every_term(reference: Reference, index: Index, term: str) -> None:
    assert ask(index, term, [0, 1, 2]) == reference.find(term, [0, 1, 2])


def test_most_terms_are_found(reference: Reference) -> None:
    found = [len(reference.find(term, [0, 1, 2])) for term in TERMS]
    assert sum(map(bool, found)) > len(TERMS) // 2
    assert 0 in found
    assert max(found) > 25


@given(terms=st.lists(st.sampled_from(TERMS), min_size=1, max_size=3), layers=st.sets(st.integers(0, 2)).map(sorted))
def test_terms_together(reference: Reference, index: Index, terms: list[str], layers: list[int]) -> None:
    assert ask(index, " ".join(terms), layers) == reference.find(" ".join(terms), layers)


@given(data=st.data())
def test_what_stands_in_a_prefix(reference: Reference, index: Index, data: st.DataObject) -> None:
    """Any piece of a prefix's text as a phrase, whole or as a beginning."""
    text = data.draw(st.sampled_from(reference.texts))
    first = data.draw(st.integers(0, len(text) - 1))
    piece = text[first : data.draw(st.integers(first + 1, len(text)))].replace('"', " ")
    query = f'"{piece}"' + data.draw(st.sampled_from(["", "*"]))
    try:
        expected = reference.find(query, [0, 1, 2])
    except SearchError:
        return
    assert ask(index, query, [0, 1, 2]) == expected


def words_of(prefixes: list[list[int]], memories: int) -> TriggerWords:
    """Two words, 0 and 1, in prefixes of a sentence each; trigger number `n` is of memory `n % memories`."""
    places: Any = np.array(
        [word << 32 | 3 * row + at for row, own in enumerate(prefixes) for at, word in enumerate(own)]
    )
    packed, ends = pack(np.sort(places).astype(np.uint64), 2)
    first = np.arange(len(prefixes), dtype=np.uint32) * 3
    numbers = np.arange(len(prefixes))
    last = first + np.array([len(own) - 1 for own in prefixes], np.uint32)
    return TriggerWords(first, last, numbers, numbers % memories, numbers // memories, numbers, numbers, packed, ends)


def test_a_prefix_without_words_that_comes_first_of_all_is_never_found() -> None:
    """It ends before it begins: before the first place of all, no place may be missing."""
    builder = WordRows(RAW, spaced=True)
    sentence = np.array([RAW.index(b"."), RAW.index(b" the"), RAW.index(b" of")], np.uint16)
    first, last = builder.add(sentence, np.array([0]), np.zeros(2, np.int64), np.array([0, 2]))
    stretches = builder.finish()
    packed, ends = pack(stretches.pairs, len(stretches.words))
    numbers = np.arange(2)
    arrays = {"last": last, "words": last - first + 1, "trigger": numbers, "memory": numbers, "rank": numbers}
    arrays |= {"sentence": numbers, "position": numbers, "packed": packed, "bytes": np.diff(ends, prepend=0)}
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(TABLES)
        write_arrays(database, arrays)
        database.executemany("INSERT INTO words VALUES (?, ?)", [(word, n) for n, word in enumerate(stretches.words)])
        words = TriggerWords.read(database)
        for asked in ("the", "of", '"the of"'):
            assert words.find(database, parse_query(asked), EVERYWHERE).triggers.tolist() == [1]


@pytest.mark.fast(1)
@pytest.mark.parametrize("more", [-1, 0, 1, 50])
def test_of_too_many_the_strongest_are_counted(more: int) -> None:
    """Word `a` in every third prefix alone, `b` in all: only the first MOST_ROWS of those with `b` are counted."""
    prefixes = [[0, 1] if number % 3 == 0 else [1] for number in range(MOST_ROWS + more)]
    words = words_of(prefixes, memories=100)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, number INTEGER)")
        database.executemany("INSERT INTO words VALUES (?, ?)", [("a", 0), ("b", 1)])
        for within in (EVERYWHERE, ((0, 99),)):
            found = words.find(database, parse_query("b"), within)
            assert found.triggers.tolist() == list(range(min(MOST_ROWS, MOST_ROWS + more)))
            assert found.memories.tolist() == [number % 100 for number in found.triggers.tolist()]
            assert found.exact == (more < 0)
        some = words.find(database, parse_query("b"), ((0, 9), (90, 94)))
        assert some.exact
        assert sorted(set(some.memories.tolist())) == [*range(10), *range(90, 95)]
        assert len(some.triggers) == sum(n % 100 < 10 or 90 <= n % 100 < 95 for n in range(len(prefixes)))
        for asked in ("a b", "b a", '"a b"', "a"):
            assert words.find(database, parse_query(asked), EVERYWHERE).triggers.tolist() == list(
                range(0, len(prefixes), 3)
            )
        assert not len(words.find(database, parse_query('"b a"'), EVERYWHERE).triggers)
