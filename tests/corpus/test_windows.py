"""Windows of over-long sentences: the text is divided, no token lost, no character cut where it can be helped."""

from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.corpus.sources.sentences import cut_windows


def by_bytes(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """A byte-level tokenizer without merges: every byte a token that spans its whole character."""
    spans = [(place, place + 1) for place, character in enumerate(text) for _ in character.encode()]
    return list(text.encode()), spans


def test_words_fall_into_windows_with_the_white_space_before_them() -> None:
    text = "one two three four five"
    spans = [(0, 3), (4, 7), (8, 13), (14, 18), (19, 23)]
    assert cut_windows(text, [1, 2, 3, 4, 5], offsets=spans, longest=2) == [
        ("one two", [1, 2]),
        (" three four", [3, 4]),
        (" five", [5]),
    ]


def test_a_character_is_cut_through_only_where_a_window_cannot_hold_it() -> None:
    tokens, spans = by_bytes("aé€b")
    # a | two bytes | three bytes | b; windows of at most four bytes
    assert [text for text, _ in cut_windows("aé€b", tokens, offsets=spans, longest=4)] == ["aé", "€b"]
    tokens, spans = by_bytes("€")
    windows = cut_windows("€", tokens, offsets=spans, longest=2)
    assert [own for _, own in windows] == [[0xE2, 0x82], [0xAC]]
    assert "".join(text for text, _ in windows) == "€"


def test_a_token_of_no_characters_may_end_a_window() -> None:
    """The second and the third share one character, so the cut goes before them."""
    assert cut_windows("€", [1, 2, 3], offsets=[(0, 0), (0, 1), (0, 1)], longest=2) == [("", [1]), ("€", [2, 3])]


@given(st.text(alphabet="ab é€😀", min_size=1, max_size=60), st.integers(1, 9))
def test_windows_put_together_are_the_sentence(text: str, longest: int) -> None:
    tokens, spans = by_bytes(text)
    windows = cut_windows(text, tokens, offsets=spans, longest=longest)
    assert "".join(part for part, _ in windows) == text
    assert [token for _, own in windows for token in own] == tokens
    assert all(1 <= len(own) <= longest for _, own in windows)
    if longest >= 4:
        # Every character fits into a window, so every window's tokens are exactly its text's.
        assert all(list(part.encode()) == own for part, own in windows)
