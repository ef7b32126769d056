"""A batch of sentences in its stored form: tokenised, over-long ones cut into windows, all packed into arrays.

Pure: reads and writes no files, so several threads may each make a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mnemoscope.corpus.sources.sentences import cut_windows
from mnemoscope.corpus.tokenized.duplicates import text_hashes
from mnemoscope.corpus.tokenized.tokenized_corpus import Integers
from mnemoscope.errors import CorpusUnreadable, ModelDamaged, PromptError
from mnemoscope.foundation.reading import SOURCE

RECORD = np.dtype([("hash", "<u8", (2,)), ("document", "<i8"), ("text", "<u4"), ("tokens", "<u4"), ("source", "<u4")])
"""One occurrence of a sentence: hash, document, bytes of text, number of tokens, and of those of its source, which
stand behind them.
"""


class Encoder(Protocol):
    """What the corpus needs of a tokenizer. Adds no special tokens; called from several threads."""

    def encode(self, texts: list[str], /) -> Sequence[Sequence[int]]:
        """The token ids of every text; they are read once, in order. Those of a pair are the text's, SOURCE, and the
        source's.
        """

    def offsets(self, text: str, /) -> Sequence[tuple[int, int]]:
        """The span of characters of every token of one text."""


@dataclass(frozen=True)
class EncodedBatch:
    """Sentences, each window by itself: joined texts (UTF-8), joined tokens (int32), and their RECORDs."""

    text: bytes
    tokens: NDArray[np.int32]
    records: NDArray[Any]
    windows: int
    without_tokens: int


def encode_batch(
    encoder: Encoder, texts: list[str], documents: list[int], *, longest: int, vocabulary: int
) -> EncodedBatch:
    """The batch of these sentences, each with its document."""
    lengths: list[int] = []

    def each(encoded: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
        # One list at a time: thousands alive together trigger Python's garbage collector again and again.
        for ids in encoded:
            lengths.append(len(ids))
            yield ids

    try:
        flat = np.fromiter(chain.from_iterable(each(encoder.encode(texts))), np.int64)
    except PromptError as error:
        raise CorpusUnreadable(f"documents from {documents[0]} on cannot be tokenised: {error}") from None
    sources: Integers = np.zeros(len(texts), np.int64)
    windows, without_tokens = 0, lengths.count(0)
    if len(separators := np.flatnonzero(flat == SOURCE)):
        sources = np.cumsum(lengths) - separators - 1
        own: Integers = np.array(lengths) - sources - 1
        if len(longer := np.flatnonzero(own > longest)):
            raise CorpusUnreadable(
                f"document {documents[longer[0]]} has {own[longer[0]]:,} tokens, but the model reads at most"
                f" {longest:,}, and a pair is not cut; shorten it, or leave it out"
            )
        kept, without_tokens = own > 0, int((own == 0).sum())
        flat = flat[np.repeat(kept, lengths) & (flat != SOURCE)]
        texts = [text for text, keep in zip(texts, kept, strict=True) if keep]
        documents = [document for document, keep in zip(documents, kept, strict=True) if keep]
        lengths, sources = own[kept].tolist(), sources[kept]
    elif without_tokens or max(lengths) > longest:
        parts, windows = _cut(encoder, texts, flat, lengths, longest=longest)
        texts, tokens, places = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
        flat, lengths = np.concatenate([flat[:0], *tokens]), list(map(len, tokens))
        documents, sources = [documents[place] for place in places], np.zeros(len(texts), np.int64)
    written = np.repeat(np.tile([True, False], len(texts)), np.array([lengths, sources], np.int64).T.ravel())
    wrong = np.flatnonzero((flat < 0) | written & (flat >= vocabulary))  # a source has rows of its own
    if len(wrong):
        ends = np.cumsum(lengths + sources)
        at = int(np.searchsorted(ends, wrong[0], side="right"))
        spans, place = encoder.offsets(texts[at]), int(wrong[0] - ends[at] + lengths[at] + sources[at])
        # A window's text may encode to other tokens than those that were cut.
        named = f" ({texts[at][slice(*spans[place])]!r})" if len(spans) == lengths[at] and not sources[at] else ""
        raise ModelDamaged(
            f"token id {flat[wrong[0]]}{named} is beyond the {vocabulary} rows of the model's head "
            f"(document {documents[at]}, sentence {texts[at][:60]!r}); use the tokenizer that belongs to the model"
        )
    packed = [text.encode() for text in texts]
    records = np.zeros(len(texts), RECORD)
    records["hash"] = text_hashes(texts)
    records["document"] = documents
    records["text"] = [len(one) for one in packed]
    records["tokens"], records["source"] = lengths, sources
    return EncodedBatch(b"".join(packed), flat.astype("<i4"), records, windows, without_tokens)


def _cut(
    encoder: Encoder, texts: list[str], flat: Integers, lengths: list[int], *, longest: int
) -> tuple[list[tuple[str, Integers, int]], int]:
    parts: list[tuple[str, Integers, int]] = []
    start = windows = 0
    for place, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        tokens = flat[start : start + length]
        start += length
        if length <= longest:
            parts += [(text, tokens, place)] if length else []
        else:
            cut = cut_windows(text, tokens.tolist(), offsets=encoder.offsets(text), longest=longest)
            kept = [(part, np.array(ids), place) for part, ids in cut if part and not part.isspace()]
            windows += len(kept)
            parts += kept
    return parts, windows
