"""Every search against a scan of the tables that shares no code with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import SearchError
from mnemoscope.search import Index, open_index
from mnemoscope.search.text import find_matches, highlight, parse_query
from search.conftest import LAYERS, WORDS
from search.scan import Scan, by_memory, by_sentence, seen

TERMS = [
    *("the", "of", "paris", "PARIS", '"of the"', '"the of the"', "par*", "wo*", "word1*", "cafe", "café", "москва"),
    *('"os.path"', "os.path", "near", "and", "rome", "rom*", "uber", "x1", "c_d", '"word1 word2"', "word39", "nothing"),
    *("the*", "ing", "thei*", "ofit", "it*"),
]


@pytest.fixture(scope="module")
def scan(random_atlas: Path) -> Scan:
    return Scan(random_atlas, LAYERS)


@pytest.fixture(scope="module")
def index(random_atlas: Path) -> Iterator[Index]:
    with open_index(random_atlas) as opened:
        yield opened


@pytest.mark.parametrize("field", ["triggers", "words"])
@given(terms=st.lists(st.sampled_from(TERMS), min_size=1, max_size=3))
def test_triggers(scan: Scan, index: Index, field: str, terms: list[str]) -> None:
    result = index.search(" ".join(terms), fields=[field], limit=1000)
    found = scan.triggers_with(terms, field)
    assert seen(result.hits) == by_sentence(found)
    assert result.total == len(result.hits)
    assert result.totals == {field: len({trigger.name for trigger in found})}
    assert result.exact
    for hit in result.hits:
        assert any(matched for _, matched in hit.parts)


@given(terms=st.lists(st.sampled_from(TERMS), min_size=1, max_size=2))
def test_words_and_triggers_share_sentences(scan: Scan, index: Index, terms: list[str]) -> None:
    """A memory is ranked by its words; only one that matches nowhere in them by its triggers."""
    result = index.search(" ".join(terms), fields=["triggers", "words"], limit=1000)
    words, contexts = (scan.triggers_with(terms, field) for field in ("words", "triggers"))
    assert result.totals == {"triggers": len(by_memory(contexts)), "words": len(by_memory(words))}
    named = {trigger.name for trigger in words}
    ranked = by_memory(words) + [own for own in by_memory(contexts) if own[0].name not in named]
    lead = {own[0].sentence: own[0].name for own in reversed(ranked)}
    assert {hit.sentence: str(hit.memory) for hit in result.hits} == lead
    assert len(result.hits) == len(lead)
    assert [hit.field for hit in result.hits] == sorted((hit.field for hit in result.hits), reverse=True)
    for hit in result.hits:
        own = {trigger.name for trigger in words + contexts if trigger.sentence == hit.sentence}
        assert set(map(str, hit.memories)) == own


@pytest.mark.fast(1)
@pytest.mark.parametrize("side", ["top", "bottom"])
@given(
    terms=st.lists(
        st.sampled_from([term for term in TERMS if '"' not in term and "." not in term]), min_size=1, max_size=3
    )
)
def test_values(scan: Scan, index: Index, side: str, terms: list[str]) -> None:
    field = "values" if side == "top" else "bottom"
    result = index.search(" ".join(terms), fields=[field], limit=1000)
    expected = scan.in_values(terms, side)
    assert {str(hit.memory): hit.score for hit in result.hits} == pytest.approx(expected, rel=1e-5)
    assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)
    assert result.total == len(expected)


def test_there_is_something_to_find(scan: Scan) -> None:
    assert len(scan.triggers_with(["the"], "triggers")) > 20
    assert len(scan.triggers_with(["the"], "words")) > 10
    assert scan.triggers_with(['"of the"', "par*"], "triggers")
    assert scan.triggers_with(["nothing"], "triggers") == []
    assert scan.triggers_with(["the", "paris"], "words")
    assert any(trigger.weight < 1 for term in TERMS for trigger in scan.triggers_with([term], "words"))
    assert scan.in_values(["paris", "rom*"], "top")
    assert {count for _, count, *_ in by_sentence(scan.triggers_with(["the"], "triggers"))} > {1, 2, 5}
    assert any(len(memories) > 3 for *_, memories in by_sentence(scan.triggers_with(["the"], "triggers")))


@pytest.mark.parametrize("token", range(len(WORDS)))
def test_tokens(scan: Scan, index: Index, token: int) -> None:
    for bottom in (False, True):
        found = index.promoting(token, bottom=bottom, limit=1000)
        expected = scan.saying(token, "bottom" if bottom else "top")
        assert {str(row.memory): row.rank for row in found} == expected
        assert index.count(token, kind="demotes" if bottom else "promotes") == len(expected)
        best = [row.rank if row.probability is None else -row.probability for row in found]
        assert best == sorted(best)
        assert bottom == any(row.probability is None for row in found) or not found
    firing = index.firing_on(token, limit=1000)
    assert {str(row.memory): row.triggers for row in firing} == scan.firing(token)
    assert [row.triggers for row in firing] == sorted((row.triggers for row in firing), reverse=True)
    assert index.token(WORDS[token])[0].id == token


@pytest.mark.parametrize("layers", [[0], [1], [0, 2], [0, 1, 2], []])
def test_layers(scan: Scan, index: Index, layers: list[int]) -> None:
    def kept(name: str) -> bool:
        return int(name[1 : name.index(".")]) in layers

    found = index.search("the", fields=["triggers"], layers=layers, limit=1000)
    expected = [trigger for trigger in scan.triggers_with(["the"], "triggers") if kept(trigger.name)]
    assert seen(found.hits) == by_sentence(expected)
    firing = index.firing_on(0, layers=layers, limit=1000)
    assert {str(row.memory): row.triggers for row in firing} == {k: n for k, n in scan.firing(0).items() if kept(k)}
    assert index.count(0, kind="fires", layers=layers) == len(firing)
    values = index.search("paris", fields=["values"], layers=layers, limit=1000)
    assert {str(hit.memory) for hit in values.hits} == {n for n in scan.in_values(["paris"], "top") if kept(n)}


@pytest.mark.parametrize("size", [1, 3, 7])
def test_pages_join_to_the_whole(index: Index, size: int) -> None:
    fields = ("words", "triggers", "values", "bottom")
    whole = index.search("paris", fields=fields, limit=1000)
    assert (whole.total, {hit.field for hit in whole.hits}) == (len(whole.hits), set(fields))
    paged = [
        hit
        for offset in range(0, whole.total + size, size)
        for hit in index.search("paris", fields=fields, limit=size, offset=offset).hits
    ]
    assert paged == list(whole.hits)
    # Field by field.
    assert [hit.field for hit in whole.hits] == sorted((hit.field for hit in whole.hits), key=fields.index)


@settings(max_examples=40)
@given(
    text=st.text(max_size=60) | st.text(alphabet="\"*()-^:+{}NEAR AND OR NOT\0'; %_parisé\u200b\x02\x03", max_size=60)
)
def test_no_query_raises_anything_but_a_search_error(index: Index, text: str) -> None:
    for ask in (index.search, index.tokens_like, index.promoting, index.firing_on):
        try:
            ask(text)
        except SearchError as error:
            said = str(error)
        else:
            said = ""
        assert "\n" not in said


@given(text=st.text(max_size=30))
def test_a_text_finds_itself(text: str) -> None:
    """Whatever is a word of a text finds the text, and the marked pieces join to it."""
    for word in text.split():
        try:
            query = parse_query(f'"{word}"')
        except SearchError:
            continue
        pieces = highlight([text], query)[0]
        assert "".join(piece for piece, _ in pieces) == text
        if word.isascii() and find_matches([word.replace('"', "")], query):
            assert any(matched for _, matched in pieces)
