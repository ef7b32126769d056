"""Cut a document into sentences, lines, or leave it whole.

The rules of English (and most other) punctuation are sentencex's, which is compiled, keeps every character and
stays linear on text without a period (figures in LOG.md). This file only decides what it is given: whole paragraphs
whose white space is already single spaces. It reads no files and knows no tokens.
"""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

import sentencex  # type: ignore[import-untyped]

from mnemoscope.errors import OptionError

Split = Literal["sentence", "line", "document"]
SPLITS: Final[tuple[str, ...]] = get_args(Split)

_BLANK_LINES: Final = re.compile(r"\n[^\S\n]*\n")


def check_split(split: str) -> Split:
    """Return `split` if it is one of the three ways to cut a document.

    Raises:
        OptionError: it is none of them.
    """
    for known in get_args(Split):
        if split == known:
            return known  # type: ignore[no-any-return]
    raise OptionError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")


def split_sentences(text: str, split: str) -> list[str]:
    """Return the sentences of one document, in order; those that are only white space are left out.

    `sentence`: paragraphs (between blank lines) are cut by punctuation and every white space becomes one space.
    `line` and `document`: the text as it stands, without normalisation.

    Raises:
        OptionError: an unknown split.
    """
    if split == "sentence":
        paragraphs = (" ".join(paragraph.split()) for paragraph in _BLANK_LINES.split(text))
        return [sentence for paragraph in paragraphs for sentence in _segment(paragraph)]
    if split == "line":
        lines = (line.removesuffix("\r") for line in text.split("\n"))
        return [line for line in lines if not _is_blank(line)]
    check_split(split)
    return [] if _is_blank(text) else [text]


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def _segment(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph whose white space is single spaces."""
    if not paragraph:
        return []
    # Collapsed BEFORE cutting, not after: sentencex 1.0.32 panics next to white space of several bytes (U+3000).
    try:
        pieces: list[str] = sentencex.segment("en", paragraph)
    except BaseException as problem:
        # A panic of the compiled code is no Exception; a paragraph left whole is better than a run that dies on it.
        if type(problem).__name__ != "PanicException":
            raise
        pieces = [paragraph]
    stripped = (piece.strip() for piece in pieces)
    return [piece for piece in stripped if piece]
