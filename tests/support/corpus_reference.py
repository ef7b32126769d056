"""What a working copy must hold, computed in the plainest way: dictionaries and lists, everything in memory.

Shares no code with the package but the sentence splitter, whose cuts are not in question here; `make` prepares the
copy that is compared.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemoscope.corpus import Source, TokenizedCorpus, open_source, prepare

LONGEST = 12
"""How many tokens a sentence of a working copy has at most, unless told."""

Split = Callable[[str], list[str]]


class Words:
    """A tokenizer for tests: a token per word, its id the word's hash; words of x alone have no token."""

    def __init__(self, vocabulary: int = 5_000) -> None:
        self.vocabulary = vocabulary
        self.encoded = 0

    def encode(self, texts: list[str], /) -> list[list[int]]:
        self.encoded += len(texts)
        return [[self._id(word) for word in text.split() if word.strip("x.")] for text in texts]

    def offsets(self, text: str, /) -> list[tuple[int, int]]:
        spans = []
        place = 0
        for word in text.split():
            place = text.index(word, place)
            if word.strip("x."):
                spans.append((place, place + len(word)))
            place += len(word)
        return spans

    def _id(self, word: str) -> int:
        return int(hashlib.md5(word.encode()).hexdigest(), 16) % self.vocabulary


class Letters:
    """A tokenizer for tests: a token per character, its id the character's code."""

    def encode(self, texts: list[str], /) -> list[list[int]]:
        return [[ord(character) % 128 for character in text] for text in texts]

    def offsets(self, text: str, /) -> list[tuple[int, int]]:
        return [(place, place + 1) for place in range(len(text))]


def make(
    source: Source | Path | str, directory: Path, *, split: str = "sentence", encoder: Any = None, **options: Any
) -> TokenizedCorpus:
    """A working copy, tokenised by words unless told; a path is opened to be split so."""
    opened = source if isinstance(source, Source) else open_source(str(source), split=split)
    usual: dict[str, Any] = {"longest": LONGEST, "vocabulary": 5_000}
    return prepare(opened, encoder or Words(), directory=directory, split=split, **(usual | options))


@dataclass
class Expected:
    """The answer, one entry per distinct sentence."""

    texts: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    multiplicity: list[int] = field(default_factory=list)
    held_out: list[bool] = field(default_factory=list)
    mined: list[int] = field(default_factory=list)
    threshold: int = 0
    windows: int = 0
    without_tokens: int = 0


def expected_copy(
    documents: list[str],
    split: Split,
    *,
    longest: int,
    max_sentences: int | None = None,
    max_tokens: int | None = None,
    hold_out: bool = True,
) -> Expected:
    """Return the answer for a text that is read whole."""
    words = Words()
    known: dict[str, int] = {}
    found = Expected()
    for number, document in enumerate(documents):
        for sentence in split(document):
            spans = words.offsets(sentence)
            ids = words.encode([sentence])[0]
            found.without_tokens += not ids
            found.windows += -(-len(ids) // longest) if len(ids) > longest else 0
            pieces = []
            last = 0
            for start in range(0, len(ids), longest):
                stop = min(start + longest, len(ids))
                end = len(sentence) if stop == len(ids) else spans[stop - 1][1]
                pieces.append((sentence[last:end], ids[start:stop]))
                last = end
            for text, own in pieces:
                key = text.strip()
                if key in known:
                    found.multiplicity[known[key]] += 1
                else:
                    known[key] = len(found.texts)
                    found.texts.append(text)
                    found.tokens.append(own)
                    found.documents.append(number)
                    found.multiplicity.append(1)
    classes = [int(hashlib.blake2b(text.encode()).hexdigest(), 16) % 10_000 for text in documents]
    if hold_out:
        found.threshold = 200
        of_class = Counter(classes[number] for number in found.documents)
        held = sum(of_class[number] for number in range(200))
        while found.threshold < 1_000 and held < 4_000:
            held += of_class[found.threshold]
            found.threshold += 1
        if all(classes[number] < found.threshold for number in found.documents):
            found.threshold = 0
    found.held_out = [classes[number] < found.threshold for number in found.documents]
    total = 0
    for sentence_id, held in enumerate(found.held_out):
        if held:
            continue
        total += len(found.tokens[sentence_id])
        if max_sentences is not None and len(found.mined) == max_sentences:
            break
        if max_tokens is not None and total > max_tokens and found.mined:
            break
        found.mined.append(sentence_id)
    return found
