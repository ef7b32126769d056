"""Cut a sentence that is longer than a model's context into windows without overlap.

The windows of a sentence, put together, are the sentence again: each takes the text from the end of the window
before it to the end of its own last token. A window's TOKENS are the tokens that were cut, not those of encoding its
text again (which may differ in the first token of some tokenizers).
"""

from __future__ import annotations

from collections.abc import Sequence


def cut_windows(
    text: str, tokens: Sequence[int], *, offsets: Sequence[tuple[int, int]], longest: int
) -> list[tuple[str, list[int]]]:
    """Return text and tokens of every window, in order; no window has more than `longest` tokens.

    A byte-level tokenizer may spread one character over several tokens, which then share its span. A cut between
    two such tokens would leave text that is in both windows or in none, so the cut moves back to the last place
    where a token ends before the next begins; only a character with more than `longest` tokens is cut through.

    Args:
        text: the sentence.
        tokens: its tokens.
        offsets: the span of characters of every token.
        longest: tokens that a window may have.
    """
    clean = _clean_cuts(offsets)
    windows: list[tuple[str, list[int]]] = []
    start = text_start = 0
    while start < len(tokens):
        stop = min(start + longest, len(tokens))
        if stop < len(tokens):
            cut = stop
            while cut > start and not clean[cut]:
                cut -= 1
            stop = cut if cut > start else stop
        text_stop = len(text) if stop == len(tokens) else max(text_start, offsets[stop - 1][1])
        windows.append((text[text_start:text_stop], list(tokens[start:stop])))
        start, text_start = stop, text_stop
    return windows


def _clean_cuts(offsets: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for every token whether it begins after all tokens before it have ended."""
    clean: list[bool] = []
    reached = 0
    for begin, end in offsets:
        clean.append(begin >= reached)
        reached = max(reached, end)
    return clean
