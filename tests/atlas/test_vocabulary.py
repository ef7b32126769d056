"""Tokens as text and as bytes: what is joined, what is shown, and whether spaces come along."""

from pathlib import Path

import polars as pl
import pytest

from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.store import write_table
from mnemoscope.atlas.vocabulary import Vocabulary, is_without_spaces
from mnemoscope.errors import AtlasDamaged, OptionError
from support.handbuilt_atlas import PROVENANCE, WORDS, manifest, write_tables

HALF = b"\xe2\x82"  # the first two of the three bytes of €
TOKENS = [b"a", b" b", HALF, b"\xac", "\ufffd".encode(), b"", b"\n"]
VOCABULARY = Vocabulary([token.decode("utf-8", "replace") for token in TOKENS], TOKENS, "here")


def test_bytes_are_joined_before_they_are_text() -> None:
    assert VOCABULARY.text([0, 2, 3, 1]) == "a€ b"
    assert VOCABULARY.text([2, 0]) == "\ufffda"
    assert VOCABULARY.text([]) == ""
    assert VOCABULARY.each_text([0, None, 3]) == ["a", None, "\ufffd"]


@pytest.mark.parametrize(
    ("token", "shown"), [(0, "a"), (1, "·b"), (2, "⟨E2 82⟩"), (3, "⟨AC⟩"), (4, "\ufffd"), (6, "⏎")]
)
def test_a_part_of_a_character_is_shown_as_bytes(token: int, shown: str) -> None:
    assert VOCABULARY.visible_text(token) == shown
    assert VOCABULARY.token(token) == {"token": token, "text": VOCABULARY.texts[token], "shown": shown}


@pytest.mark.parametrize("token", [-1, 7])
def test_a_token_that_is_not_there_is_refused(token: int) -> None:
    for ask in (VOCABULARY.text, VOCABULARY.each_text):
        with pytest.raises(OptionError, match=rf"token {token} .* tokens 0-6"):
            ask([0, token])


@pytest.mark.parametrize(("characters", "without"), [("ก木あ\U00020000", True), ("aé한", False)])
def test_scripts_without_spaces(characters: str, without: bool) -> None:
    assert [is_without_spaces(character) for character in characters] == [without] * len(characters)


@pytest.mark.parametrize(
    ("words", "carries"),
    [
        (["one", " two", " three"], True),
        (["one", "two", "three"], False),
        (["one", " two", "three"], True),  # half of the two spaces
        (["one", "two", "three", " four", "five"], False),  # one of four
        ([" one "], True),  # at the ends no space counts
    ],
)
def test_tokens_bring_half_of_the_spaces_along_or_not(words: list[str], carries: bool) -> None:
    text = " ".join(word.strip() for word in words)
    vocabulary = Vocabulary(words, [word.encode() for word in words])
    stored = pl.DataFrame({"text": [text], "tokens": [list(range(len(words)))]})
    assert vocabulary.carries_spaces(stored) is carries


def test_of_texts_that_are_ids_one_space_is_expected() -> None:
    """They stand for words that may have no spaces in them; ` b` brings one, where the text has three."""
    for tokens, carries in (([0, 0, 0, 1], True), ([0, 0, 0, 0], False), ([0], True)):
        stored = pl.DataFrame({"text": [" ".join(map(str, tokens))], "tokens": [tokens]})
        assert VOCABULARY.carries_spaces(stored) is carries


@pytest.mark.parametrize(("order", "said"), [([1, 0, *range(2, 24)], "order"), ([0, 1], "2 rows, and the model 24")])
def test_a_vocabulary_out_of_order_or_of_another_size_is_damage(tmp_path: Path, order: list[int], said: str) -> None:
    write_tables(tmp_path)
    columns = {"token": order, "text": [WORDS[n] for n in order], "bytes": [WORDS[n].encode() for n in order]}
    write_table(tmp_path / "vocabulary.parquet", columns, name="vocabulary", provenance=PROVENANCE)
    seal(tmp_path, manifest())
    with pytest.raises(AtlasDamaged, match=rf"vocabulary.* {said}"):
        open_atlas(tmp_path).token_text([1])


def test_the_pieces_of_a_text_are_the_text() -> None:
    """A character in two tokens is in the piece of the second; one that never ends is a replacement mark."""
    words = Vocabulary(["a", "?", "?", " b", "?"], [b"a", b"\xc3", b"\xa9", b" b", b"\xe2\x82"])
    assert words.split_text([0, 1, 2, 3]) == ["a", "", "é", " b"]
    assert words.split_text([3, 4]) == [" b", "\ufffd"]
    assert words.split_text([1, 0, 2]) == ["", "\ufffda", "\ufffd"]
    assert words.split_text([]) == []
    for tokens in ([0, 1, 2, 3], [3, 4], [1, 0, 2]):
        assert "".join(words.split_text(tokens)) == words.text(tokens)
