"""Searching triggers against FTS5, asked of every prefix's text, where tokens are parts of words and of characters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.errors import SearchError
from mnemoscope.search import Index, open_index, trigger_words
from mnemoscope.search.text import find_matches, parse_query
from search.conftest import LAYERS, build_random_atlas
from search.scan import Scan, Seen, Trigger, by_sentence, seen

CONTEXT = 24
RAW = [
    *(b" the", b" of", b" Par", b"is", b"ian", b" a", b"s", b" os", b".path", b".", b"\n", b" x", b"1", "é".encode()),
    *("é".encode()[:1], "é".encode()[1:], b" caf", "我".encode(), "们".encode(), "们".encode()[:2], "🤖".encode()),
    *(b"_", b" (", "“".encode(), "\u0301".encode(), "\u00a0".encode(), b"a b", b" thermo", b"stat", "𞤀".encode()),
    *(f" word{number}".encode() for number in range(12)),
]
TERMS = [
    *("the", "of", "par", "paris", "parisian", "pari*", "par*", '"of the"', '"the of"', '"the par"*', '"of the of"'),
    *(
        *(
            "os",
            "os.path",
            '"os.pa"*',
            "os*",
            "x1",
            "th*",
            "é",
            "cafe",
            "caf*",
            "我",
            "我们",
            "我们我",
            "🤖",
            "🤖🤖",
            "�",
            "�*",
        ),
    ),
    *("ian", '"is a"', "a", "as", "as*", "b", '"a b"', "therm*", "thermostat", "stat", "𞤀", "word1", "word1*"),
    *('"word1 the"', "nothing", "not*", "s s", '"s s"', "_x", "paré", "“the”"),
]


class Reference:
    """The text of every different positive prefix, and which of them FTS5 finds."""

    def __init__(self, atlas: Path) -> None:
        scan = Scan(atlas, LAYERS)
        self.triggers: list[Trigger] = []
        self.texts: list[str] = []
        for layer, rows in scan.triggers.items():
            for row in rows:
                if row["sign"] == 1 and row["prefix_group"] == row["rank"]:
                    begin = max(0, row["position"] - CONTEXT + 1)
                    tokens = scan.sentences[row["sentence"]]["tokens"][begin : row["position"] + 1]
                    text = b"".join(scan.raw[token] for token in tokens).decode("utf-8", "replace")
                    space = text.find(" ", 0, 24) if begin else 0  # whole words only, if a space is near
                    self.triggers.append(Trigger(layer, row["memory"], row["rank"], row["sentence"], row["position"]))
                    self.texts.append(text[max(0, space) :])

    def find(self, text: str, layers: list[int]) -> list[Seen]:
        return by_sentence([trigger for trigger in self.matching(text) if trigger.layer in layers])

    def matching(self, text: str) -> list[Trigger]:
        return [self.triggers[number] for number in find_matches(self.texts, parse_query(text))]


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


def ask(index: Index, text: str, layers: list[int]) -> list[Seen]:
    result = index.search(text, fields=["triggers"], layers=layers, limit=1000)
    assert result.exact
    assert result.total == len(result.hits)
    for hit in result.hits:
        assert any(matched for _, matched in hit.parts)
    return seen(result.hits)


@pytest.mark.parametrize("term", TERMS)
def test_every_term(reference: Reference, index: Index, term: str) -> None:
    assert ask(index, term, [0, 1, 2]) == reference.find(term, [0, 1, 2])


def test_most_terms_are_found(reference: Reference) -> None:
    found = [len(reference.find(term, [0, 1, 2])) for term in TERMS]
    assert sum(map(bool, found)) > len(TERMS) // 2
    assert 0 in found
    assert max(found) > 20


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


@pytest.mark.parametrize("most", [1, 5, 40, 10_000])
def test_of_too_many_the_strongest_are_counted(reference: Reference, index: Index, most: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(trigger_words, "MOST_ROWS", most)
    found = sorted(reference.matching("the"), key=lambda one: (one.rank, one.layer, one.memory))
    places = dict.fromkeys((one.sentence, one.position) for one in found)
    assert 40 < len(places) < 10_000
    kept = set(list(places)[:most])
    result = index.search("the", fields=["triggers"], limit=1000)
    assert result.exact == (most == 10_000)
    assert seen(result.hits) == by_sentence([one for one in found if (one.sentence, one.position) in kept])
