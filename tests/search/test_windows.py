"""The word at a place is whole, whatever tokens are: parts of words, of characters, punctuation."""

import pytest

from mnemoscope.search.windows import CONTEXT, Windows

RAW = [
    *(b" arb", b"it", b"r", b"ary", b".", b" os", b".path", b"_", b" (", b"x", b"1", b"\n", b"", b" the"),
    *(b" caf", "é".encode()[:1], "é".encode()[1:], b"s", "我".encode(), "们".encode(), b" 12", b"34"),
    *("e\u0301".encode(), "\u0301".encode(), "🤖".encode(), b" a b", b"c d"),
]
NUMBER = {raw: number for number, raw in enumerate(RAW)}
WINDOWS = Windows(RAW, spaced=True)


@pytest.mark.parametrize(
    ("tokens", "position", "word", "left"),
    [
        *(([" arb", "it", "r", "ary", "."], 0, " arbitrary", 3), ([" arb", "it", "r", "ary", "."], 1, "arbitrary", 2)),
        *(([" arb", "it", "r", "ary", "."], 3, "arbitrary", 0), ([" arb", "it", "r", "ary", "."], 4, ".", 0)),
        *(([" the", " arb", "it"], 0, " the", 0), ([" os", ".path", "s"], 0, " os", 0)),
        *(([" os", ".path", "s"], 1, ".paths", 1), (["x", "1", "_", "x"], 0, "x1", 1), ([" 12", "34"], 1, "1234", 0)),
        *(([" a b", "c d", "x"], 1, "bc dx", 1), (["我", "们"], 0, "我", 0), (["x", "我", "x"], 1, "我", 0)),
        *(
            (["x", "🤖", "x"], 0, "x", 0),
            (["e\u0301", "s"], 1, "e\u0301s", 0),
            (["x", "\u0301", "s"], 0, "x\u0301s", 2),
        ),
        *((["\n", " ("], 0, "\n", 0), (["", "x"], 1, "x", 0)),
    ],
)
def test_examples(tokens: list[str], position: int, word: str, left: int) -> None:
    window = WINDOWS.window([NUMBER[token.encode()] for token in tokens], position)
    assert (window.word, window.left) == (word, left)
    assert window.prefix == "".join(tokens[: position + 1])
    assert window.completed == "".join(tokens[: position + 1 + left])[: len(window.completed)]
    assert window.completed.endswith(word)


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_a_character_of_two_tokens_is_not_cut(position: int) -> None:
    first = NUMBER[b" caf"]
    window = WINDOWS.window([first, first + 1, first + 2, first + 3], position)
    assert (window.word.strip(), window.completed) == ("cafés", " cafés")
    assert window.prefix == [" caf", " caf\ufffd", " café", " cafés"][position]


def test_a_prefix_is_cut_at_a_space_and_a_word_has_an_end() -> None:
    long = [NUMBER[b"r"]] * 100
    window = WINDOWS.window(long, 50)
    assert (window.word, window.completed) == ("r" * (2 * CONTEXT + 1), "r" * 2 * CONTEXT)
    assert window.left == CONTEXT
    text = WINDOWS.window([NUMBER[b"r"], NUMBER[b" the"]] * 20, 39)
    assert text.prefix == " the" + "r the" * 11
    assert WINDOWS.window([*long[:60], NUMBER[b" the"]], 60).prefix == " the"


def test_tokens_without_spaces_are_words() -> None:
    window = Windows([b"the", b"cat"], spaced=False).window([0, 1, 0], 1)
    assert (window.word, window.left, window.prefix) == ("cat", 0, "the cat")
