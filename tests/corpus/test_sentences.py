"""Sentence splitting: what is a sentence, what is kept, and text that has no natural end."""

import time

import pytest
import sentencex  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.mining_options import SPLITS


def test_sentences_are_cut_by_punctuation_and_white_space_is_collapsed() -> None:
    text = "Dr. Smith  came\tat 3 p.m. on\nMonday. He left!\n \t\n\u3000The\u00a0end"
    assert split_sentences(text, "sentence") == ["Dr. Smith came at 3 p.m. on Monday.", "He left!", "The end"]


class PanicException(BaseException):
    """What compiled code raises when it panics, by name."""


def test_a_paragraph_on_which_the_splitter_panics_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def segment(language: str, paragraph: str) -> list[str]:
        if "panic" in paragraph:
            raise PanicException
        if "stop" in paragraph:
            raise KeyboardInterrupt
        return [paragraph]

    monkeypatch.setattr(sentencex, "segment", segment)
    assert split_sentences("One.\n\nA panic.  It\nstays.", "sentence") == ["One.", "A panic. It stays."]
    with pytest.raises(KeyboardInterrupt):
        split_sentences("A stop.", "sentence")


def test_lines_and_documents_stay_as_they_stand() -> None:
    assert split_sentences("  One. Two.\r\n\n \t \nthree  ", "line") == ["  One. Two.", "three  "]
    assert split_sentences(" One.\n\nTwo. ", "document") == [" One.\n\nTwo. "]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("blank", ["", " ", "\n\n", "\t \u2003\n\r\n"])
def test_white_space_alone_is_no_sentence(split: str, blank: str) -> None:
    assert split_sentences(blank, split) == []


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(OptionError, match="split='word' is not known"):
        split_sentences("a", "word")


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_sentences_lose_nothing_but_white_space(text: str) -> None:
    sentences = split_sentences(text, "sentence")
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


UNENDING = {
    **{"letters": "a" * 1_000_000, "words": "word " * 200_000, "newlines": "\n" * 100_000, "periods": "." * 1_000_000},
    **{"initials": "A. " * 300_000, "brackets": "(" * 1_000_000, "quotes": '"' * 1_000_000, "blanks": "\n " * 500_000},
    # Next to white space of several bytes the compiled splitter panics, unless that was collapsed before.
    "wide spaces": "é.\u3000" * 100_000,
}


@pytest.mark.parametrize("text", UNENDING.values(), ids=UNENDING)
def test_text_without_natural_sentences_is_cut_in_no_time(text: str) -> None:
    start = time.perf_counter()
    sentences = split_sentences(text, "sentence")
    assert time.perf_counter() - start < 5
    assert "".join("".join(sentences).split()) == "".join(text.split())
