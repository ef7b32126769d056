"""Documents drawn from a text: which, their first tokens, and the stored sentences that begin there, worked by hand."""

import hashlib
from typing import Any

import polars as pl
import pytest

from mnemoscope.corpus import Source, document_hash
from mnemoscope.corpus.sources.pydocs import document_key
from mnemoscope.corpus.tokenized.document_sample import DocumentSample, SampledDocument
from mnemoscope.errors import PlanDiffers
from support.corpus_reference import Letters, Words


def draw(documents: list[str], stored: list[tuple[int, int, str]], **options: Any) -> list[SampledDocument]:
    """The sample of a text whose stored sentences are (sentence, document, text)."""
    defaults: dict[str, Any] = {"encoder": Words(), "split": "sentence", "seed": 0, "mined": 99, "held_out": 99}
    sample = DocumentSample(**(defaults | {"threshold": 0, "listed": None} | options))
    table = pl.DataFrame(stored, schema={"sentence": pl.Int64, "document": pl.Int64, "text": pl.String}, orient="row")
    return sample.draw(source_of(documents), table)


def source_of(documents: list[str]) -> Source:
    return Source("the text", {}, lambda *_: ((text, True) for text in documents))


def codes(text: str) -> tuple[int, ...]:
    return tuple(Words().encode([text])[0])


def test_a_sample_by_eye() -> None:
    documents = ["One  two.\nThree four five. Six.", "Too short.", "One two. More words here."]
    # In no order, and one repeated sentence, stored under its first document.
    stored = [(4, 2, "More words here."), (1, 0, "Three four five."), (0, 0, "One two.")]
    stored += [(3, 1, "Too short."), (2, 0, "Six.")]
    assert draw(documents, stored, length=3) == [
        SampledDocument(0, False, codes("One two. Three"), "One  two.\nThree", (0, 1), (2, 1)),
        SampledDocument(2, False, codes("One two. More"), "One two. More", (0, 4), (2, 1)),
    ]


@pytest.mark.parametrize(("split", "inside"), [("sentence", 3), ("line", 4)])
def test_white_space_counts_as_it_is_stored(split: str, inside: int) -> None:
    """Four characters are `ab` and two spaces: three of the sentence as it is stored, four of the line."""
    text = "ab  cd ef."
    stored = [(7, 0, "ab cd ef." if split == "sentence" else text)]
    (found,) = draw([text], stored, length=4, split=split, encoder=Letters())
    assert (found.text, found.tokens, found.sentences, found.inside) == ("ab  ", (97, 98, 32, 32), (7,), (inside,))


def test_what_begins_behind_the_last_token_is_not_in_it() -> None:
    (found,) = draw(["Ab. Cd. Ef."], [(0, 0, "Ab."), (1, 0, "Cd."), (2, 0, "Ef.")], length=4, encoder=Letters())
    # The fourth character is the space before the second sentence.
    assert (found.text, found.sentences, found.inside) == ("Ab. ", (0,), (3,))
    (found,) = draw(["Ab. Cd. Ef."], [(0, 0, "Ab."), (1, 0, "Cd."), (2, 0, "Ef.")], length=5, encoder=Letters())
    assert (found.text, found.sentences, found.inside) == ("Ab. C", (0, 1), (3, 1))


def test_the_second_of_two_equal_sentences_is_looked_for_behind_the_first() -> None:
    (found,) = draw(["Go on. Go on. See there now."], [(0, 0, "Go on."), (1, 0, "See there now.")], length=5)
    assert (found.sentences, found.inside) == ((0, 1), (2, 1))


def test_of_a_sentence_stored_in_windows_the_first_counts() -> None:
    stored = [(0, 0, "one two three"), (1, 0, " four five six."), (2, 0, "Seven eight.")]
    (found,) = draw(["one two three four five six. Seven eight."], stored, length=5)
    assert (found.sentences, found.inside) == ((0,), (3,))


def test_a_sentence_that_the_head_cuts_through_is_known_by_its_beginning() -> None:
    """Of a text of more than 1,024 characters only so many are looked at, where they hold sixteen tokens to spare."""
    words = "So " + "ten " * 400 + "end."
    (found,) = draw([words], [(0, 0, words)], length=20)
    assert (found.text, found.sentences, found.inside) == (("So " + "ten " * 19).strip(), (0,), (20,))


@pytest.mark.parametrize(
    ("characters", "tokens", "enough"),
    [
        *((1_024, 30, True), (1_024, 29, False)),  # the whole text
        *((1_025, 46, True), (1_025, 45, True), (1_025, 29, False)),  # sixteen to spare, or all of the longer head
        *((16_384, 30, True), (16_384, 29, False)),
        *((16_385, 46, True), (16_385, 45, False)),  # cut, so sixteen more
    ],
)
def test_a_document_has_enough_tokens_or_not(characters: int, tokens: int, enough: bool) -> None:
    """A text of so many characters whose tokens, all but the last, are short words at its beginning."""
    text = "w " * (tokens - 1)
    text += "y" * (characters - len(text))
    found = draw([text], [(0, 0, text)], length=30, split="document")
    assert [one.tokens for one in found] == ([codes("w " * 29 + ("w" if tokens > 30 else text[58:]))] if enough else [])


@pytest.mark.parametrize("listed", [False, True], ids=["by the rule", "by a list"])
def test_of_either_kind_so_many_of_least_hash_are_drawn(listed: bool) -> None:
    documents = [f"Text {n} is a document." if n % 3 else f"Text {n}." for n in range(60)]
    stored = [(n, n, text) for n, text in enumerate(documents[:50])]
    keys = frozenset(map(document_key, documents[:60:4])) if listed else None
    told: list[int] = []
    sample = DocumentSample(Words(), "sentence", 5, length=4, mined=7, held_out=4, threshold=4_000, listed=keys)
    table = pl.DataFrame(stored, schema=["sentence", "document", "text"], orient="row")
    found = sample.draw(source_of(documents), table, tell=lambda: told.append(1))
    expected = []
    for held_out, most in ((False, 7), (True, 4)):
        # Behind the last document of which a sentence is stored nothing was mined; every third is too short.
        of_kind = [n for n in range(50) if n % 3 and _is_out(documents[n], keys) == held_out]
        assert len(of_kind) > most
        of_kind.sort(key=lambda n: hashlib.blake2b(f"5 {n}".encode(), digest_size=8).digest())
        expected += [(n, held_out) for n in of_kind[:most]]
    assert ([(one.number, one.held_out) for one in found], len(told)) == (sorted(expected), 50)


def _is_out(text: str, keys: frozenset[str] | None) -> bool:
    return document_hash(text) < 4_000 if keys is None else document_key(text) in keys


def test_nothing_is_held_out_without_a_rule_and_nothing_drawn_that_is_not_asked_for() -> None:
    documents = [f"Text {n} is a document." for n in range(300)]
    stored = [(n, n, text) for n, text in enumerate(documents)]
    assert min(map(document_hash, documents)) < 100
    assert [one.held_out for one in draw(documents, stored, length=2)] == [False] * 99
    assert draw(documents, stored, length=2, mined=0) == []
    assert draw(documents, [], length=2) == []


@pytest.mark.parametrize("split", ["sentence", "document"])
def test_a_stored_sentence_must_stand_in_its_document(split: str) -> None:
    documents, stored = ["One  two three.", "Four five six."], [(0, 0, "One  two three."), (1, 1, "Four five six.")]
    if split == "sentence":
        stored[0] = (0, 0, "One two three.")
    assert len(draw(documents, stored, length=2, split=split)) == 2
    said = r"the text is not the text that was mined: its document 1 lacks 'Four five six\.'; restore the text"
    with pytest.raises(PlanDiffers, match=said):
        draw([documents[0], "Four five, six."], stored, length=2, split=split)
