"""Texts that are token ids."""

import re

import pytest

from mnemoscope.errors import PromptError
from mnemoscope.models.tokens.id_tokens import IdTokens


def test_a_text_is_its_ids_in_decimal() -> None:
    reader = IdTokens()
    assert reader.encode(["12 5  7\n0", "", "007"]) == [[12, 5, 7, 0], [], [7]]
    assert reader.offsets("12 5  7") == [(0, 2), (3, 4), (6, 7)]
    assert (reader.vocabulary(3), reader.special()) == (([" 0", " 1", " 2"], [b" 0", b" 1", b" 2"]), None)
    assert reader.encode(["9" * 18]) == [[10**18 - 1]]


def test_a_beginning_token_is_left_out_once() -> None:
    reader = IdTokens(beginning=12)
    assert reader.encode(["12 12 7", "5 12", "12", ""]) == [[12, 7], [5, 12], [], []]
    assert (reader.offsets("12 12 7"), reader.offsets("5 12")) == ([(3, 5), (6, 7)], [(0, 1), (2, 4)])


def test_the_end_of_a_frame_is_left_out_once() -> None:
    reader = IdTokens(beginning=12, ending=(8, 9))
    assert reader.encode(["12 5 8 9", "5 8 9 8 9", "5 9", "8 9", "12"]) == [[5], [5, 8, 9], [5, 9], [], []]
    assert (reader.offsets("12 5 8 9"), reader.offsets("5 9")) == ([(3, 4)], [(0, 1), (2, 3)])


TEXTS = ["4 x 5", "4 x", "-1", "1.5", "4 \u0663", "4 \u00b2", "1,2", "9" * 19, f"4 {'9' * 19}", "x" * 50]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_id_is_named(text: str) -> None:
    """A long one by its beginning."""
    wrong = text.removeprefix("4 ").removesuffix(" 5")[:40]
    for read in (lambda: IdTokens().encode(["4 5", text]), lambda: IdTokens().offsets(text)):
        with pytest.raises(PromptError, match=f"^{re.escape(repr(wrong))} is not a token id"):
            read()
