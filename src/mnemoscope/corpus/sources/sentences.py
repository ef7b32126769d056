"""Cuts a document into sentences or lines, or leaves it whole; cuts a sentence longer than the context into windows.

The punctuation rules of English (and most other languages) are sentencex's, which is compiled, keeps every character
and stays linear on text without a period (figures in docs/log). It receives whole paragraphs with single spaces.
"""

import re
from collections.abc import Sequence
from itertools import accumulate

import sentencex  # type: ignore[import-untyped]

from mnemoscope.foundation.options.mining_options import MiningOptions

_LINE_END = re.compile(r"\r\n?|\n")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")


def check_split(split: str) -> None:
    MiningOptions.check({"split": split})


def split_sentences(text: str, split: str) -> list[str]:
    """The sentences of one document, in order, without those of only white space.

    `sentence`: paragraphs (between blank lines) are cut by punctuation and every white space becomes one space. `line`
    and `document`: the text as it is, without normalisation.
    """
    check_split(split)
    if split == "sentence":
        lines = _LINE_END.sub("\n", text) if "\r" in text else text
        paragraphs = (" ".join(paragraph.split()) for paragraph in _BLANK_LINES.split(lines))
        return [sentence for paragraph in paragraphs for sentence in _segment(paragraph)]
    pieces = _LINE_END.split(text) if split == "line" else [text]
    return [piece for piece in pieces if piece and not piece.isspace()]


def _segment(paragraph: str) -> list[str]:
    if not paragraph:
        return []
    # White space is collapsed before the cut: sentencex 1.0.32 panics next to white space of several bytes (U+3000).
    try:
        pieces: list[str] = sentencex.segment("en", paragraph)
    except BaseException as error:
        # A panic of the compiled code is no Exception; the paragraph stays whole.
        if type(error).__name__ != "PanicException":
            raise
        pieces = [paragraph]
    stripped = (piece.strip() for piece in pieces)
    return [piece for piece in stripped if piece]


def cut_windows(
    text: str, tokens: Sequence[int], *, offsets: Sequence[tuple[int, int]], longest: int
) -> list[tuple[str, list[int]]]:
    """Text and tokens of every window of a sentence, in order; no window has more than `longest` tokens.

    Joined, the windows are the sentence. Its tokens are the ones that were cut, not those of encoding its text again.
    `offsets` is the span of characters of every token. Tokens that share a character stay together: the cut moves back
    to the last place where a token ends before the next begins, unless a character has more than `longest` tokens.
    """
    # For each token, whether it begins after all tokens before it have ended; and the end of all.
    ends = accumulate((end for _, end in offsets), max, initial=0)
    clean = [*(begin >= reached for (begin, _), reached in zip(offsets, ends, strict=False)), True]
    windows: list[tuple[str, list[int]]] = []
    start = text_start = 0
    while start < len(tokens):
        most = min(start + longest, len(tokens))
        stop = next((cut for cut in range(most, start, -1) if clean[cut]), most)
        text_stop = len(text) if stop == len(tokens) else max(text_start, offsets[stop - 1][1])
        windows.append((text[text_start:text_stop], list(tokens[start:stop])))
        start, text_start = stop, text_stop
    return windows
