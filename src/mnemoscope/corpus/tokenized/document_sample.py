"""A random sample of a text's documents, by seed, each with its first tokens and the mined sentences within these.

The text is read again from its source, since an atlas stores only the sentences that its tables name. A text that lacks
a stored sentence has changed since, and is refused.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from mnemoscope.corpus.sources.opening import Source
from mnemoscope.corpus.sources.row_fields import Render
from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.corpus.tokenized.encoded_batches import Encoder
from mnemoscope.corpus.tokenized.first_pass import LISTED, document_class
from mnemoscope.errors import PlanDiffers

_HEADS = (1_024, 16_384)
"""Characters of a document in which its first tokens are sought; the second where the first hold too few."""
_SPARE = 16
"""Extra tokens that a cut document must have: a cut through a word may change its last ones."""


@dataclass(frozen=True)
class SampledDocument:
    """A document, and the stored sentences that begin within its first tokens: `inside` how many tokens of each lie
    there.
    """

    number: int
    held_out: bool
    tokens: tuple[int, ...]
    text: str
    sentences: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()


_Head = tuple[SampledDocument, str]
"""A document whose sentences are not known yet, and the text around its first tokens."""


@dataclass(frozen=True)
class DocumentSample:
    """Draws the documents of least hash that have `length` tokens. `threshold` and `listed` are the hold-out rule of
    the mined text (0 and None: nothing is held out).
    """

    encoder: Encoder
    split: str
    seed: int
    length: int
    mined: int
    held_out: int
    threshold: int
    listed: frozenset[str] | None
    render: Render | None = None

    def draw(
        self, source: Source, stored: pl.DataFrame, *, tell: Callable[[], None] = lambda: None
    ) -> list[SampledDocument]:
        """The drawn documents, by number. `stored` are an atlas's sentences: sentence, document, text.

        Reads up to the last document with a stored sentence; calls `tell` after each.
        """
        stored = stored.sort("document", "sentence")
        heads = sorted(self._heads(source, stored, tell), key=lambda head: head[0].number)
        return _with_sentences(heads, list(self._pieces(heads)), stored, encoder=self.encoder)

    def _heads(self, source: Source, stored: pl.DataFrame, tell: Callable[[], None]) -> Iterator[_Head]:
        numbers, last = stored["document"], stored["document"].max()
        drawn: dict[bool, list[tuple[int, int, _Head]]] = {False: [], True: []}
        for number, text in enumerate(source.documents(render=self.render)):
            if not isinstance(last, int) or number > last:
                break
            tell()
            held = False
            if self.listed is not None or self.threshold:
                class_ = document_class(text, self.listed)
                held = class_ < self.threshold if self.listed is None else class_ == LISTED
            kept, most = drawn[held], self.held_out if held else self.mined
            order = -int.from_bytes(hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest())
            if most == 0 or (len(kept) == most and order <= kept[0][0]):
                continue
            sentences = stored["text"][numbers.search_sorted(number, "left") : numbers.search_sorted(number, "right")]
            self._check_holds(source, number, text, sentences.to_list())
            if (head := self._head(number, held, text)) is not None:
                heapq.heappush(kept, (order, number, head))
                if len(kept) > most:
                    heapq.heappop(kept)
        for kept in drawn.values():
            yield from (head for _, _, head in kept)

    def _check_holds(self, source: Source, number: int, text: str, sentences: Sequence[str]) -> None:
        whole = " ".join(text.split()) if self.split == "sentence" else text
        for sentence in sentences:
            if sentence not in whole:
                raise PlanDiffers(
                    f"{source.spec} is not the text that was mined: its document {number} lacks {sentence[:60]!r};"
                    " restore the text as it was"
                )

    def _head(self, number: int, held_out: bool, text: str) -> _Head | None:
        for most in _HEADS:
            head = text[:most]
            (tokens,) = self.encoder.encode([head])
            if len(tokens) >= self.length + (len(text) > most) * _SPARE:
                end = self.encoder.offsets(head)[self.length - 1][1]
                return SampledDocument(number, held_out, tuple(map(int, tokens[: self.length])), head[:end]), head
            if len(text) <= most:
                break
        return None

    def _pieces(self, heads: Sequence[_Head]) -> Iterator[tuple[int, int, str, int]]:
        """Yields per sentence of the heads: its head's place, document, text, and how many of its characters count."""
        for place, (document, head) in enumerate(heads):
            text, before = head, document.text
            end = len(before)
            if self.split == "sentence":
                # Trailing white space becomes one space, as within a longer sentence.
                text, end = " ".join(head.split()), len(" ".join(before.split())) + before[-1:].isspace()
            at = 0
            for piece in split_sentences(head, self.split):
                at = text.index(piece, at)
                if at >= end:
                    break
                yield place, document.number, piece, min(end - at, len(piece))
                at += len(piece)


def _with_sentences(
    heads: Sequence[_Head], pieces: Sequence[tuple[int, int, str, int]], stored: pl.DataFrame, *, encoder: Encoder
) -> list[SampledDocument]:
    """The documents with the stored sentences among the pieces of their heads. A sentence is stored once, under its
    first document. The piece at a head's end may be cut, and a long sentence is stored as windows: then one begins with
    the other.
    """
    kinds = {"place": pl.Int64, "document": pl.Int64, "piece": pl.String, "counted": pl.Int64}
    table = pl.DataFrame(list(pieces), schema=kinds, orient="row")
    same = table.join(stored.select("sentence", "text"), left_on="piece", right_on="text", coalesce=False)
    begun = table.join(stored, on="document").filter(
        pl.col("text").str.starts_with(pl.col("piece")) | pl.col("piece").str.starts_with(pl.col("text"))
    )
    columns = ["place", "sentence", "text", "counted"]
    both = pl.concat([same.select(columns), begun.select(columns)])
    both = both.group_by("place", "sentence", "text").agg(pl.col("counted").max()).sort("place", "sentence")
    within: list[list[tuple[int, int]]] = [[] for _ in heads]
    for place, sentence, text, counted in both.iter_rows():
        within[place].append((sentence, sum(end <= counted for _, end in encoder.offsets(text))))
    return [
        replace(document, sentences=tuple(one for one, _ in pairs), inside=tuple(count for _, count in pairs))
        for (document, _), pairs in zip(heads, within, strict=True)
    ]
