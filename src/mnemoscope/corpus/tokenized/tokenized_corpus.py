"""The text as mining reads it: distinct sentences with ids, tokens, documents, memory-mapped from one folder.

Columns are files of numbers with one entry per distinct sentence; text and tokens are looked up through them. Pages are
released after a while, so a walk over any number of sentences stays within a few megabytes of resident memory: pages of
a mapped file count as the process's own.

A plan of batches groups sentences of similar length: little padding, a fixed order. Sentences are taken in windows in
corpus order and sorted by length inside a window. A batch is filled as far as the budget allows, but at most one
position in twenty is padding, and no boundary of the model lies inside it.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mnemoscope.corpus.sources.row_fields import PAIR
from mnemoscope.errors import OptionError, StoreFailed
from mnemoscope.foundation.files import storing

COLUMNS = {
    "text_starts": "<i8",
    "text_lengths": "<i8",
    "token_starts": "<i8",
    "lengths": "<i4",
    "source_lengths": "<i4",
    "documents": "<i8",
    "multiplicity": "<u4",
    "held_out": "?",
    "hashes": "<u8",
    "mined": "<i8",
    "mined_lengths": "<i4",
    "held": "<i8",
}
"""The finished columns and the type of their entries; the file of each is its name with `.bin`."""

TOUCHES = 1 << 15
"""Look-ups of sentences after which the mapped pages are given back."""

WINDOW = 65_536
PADDING_SHARE = 20
"""At most one position in so many is padding, in every single batch."""

Integers = NDArray[np.int64]


@final
class MappedArray:
    def __init__(self, path: Path, dtype: DTypeLike, *, writable: bool = False) -> None:
        self._mapped: mmap.mmap | None = None
        self.array: NDArray[Any] = np.empty(0, dtype)
        if path.stat().st_size:  # an empty file cannot be mapped
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            with path.open("r+b" if writable else "rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=access)
            self.array = np.frombuffer(self._mapped, dtype)

    def release(self) -> None:
        """Returns the pages to the operating system; the array stays valid and nothing written is lost."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)


@final
class Batches:
    """The batches of a plan, in order; `ids(k)` are the sentences of batch `k`, sorted by (length, id)."""

    def __init__(self, directory: Path) -> None:
        """Files in the folder: the sentences of all batches in a row, and where each batch ends."""
        self._order, self._ends = (MappedArray(path, "<i8").array for path in _batch_files(directory))
        self.count: int = len(self._ends)

    def ids(self, k: int) -> Integers:
        if not 0 <= k < self.count:
            raise IndexError(f"batch {k} of {self.count}")
        start = int(self._ends[k - 1]) if k else 0
        return np.array(self._order[start : int(self._ends[k])], np.int64)


@final
class TokenizedCorpus:
    """Distinct sentences 0..sentences-1 in order of first occurrence, held-out ones included."""

    def __init__(
        self, directory: Path, *, counts: Mapping[str, Any], fingerprint: str, second: TokenizedCorpus | None = None
    ) -> None:
        self.directory = directory
        self.counts: dict[str, Any] = dict(counts)
        self.fingerprint = fingerprint
        self._columns = {name: MappedArray(directory / f"{name}.bin", kind) for name, kind in COLUMNS.items()}
        self._text = MappedArray(directory / "text.bin", np.uint8)
        self._tokens = MappedArray(directory / "tokens.bin", "<i4")
        self._touches = 0
        self._second = second
        self.lengths: NDArray[np.int32] = self._columns["lengths"].array
        self.multiplicity: NDArray[np.uint32] = self._columns["multiplicity"].array
        self.held_out: NDArray[np.bool_] = self._columns["held_out"].array
        self.mined: Integers = self._columns["mined"].array
        """Ids of the sentences to mine, ascending: not held out and within the caps."""
        self.mined_lengths: NDArray[np.int32] = self._columns["mined_lengths"].array
        self.held: Integers = self._columns["held"].array
        self.sentences: int = len(self.lengths)
        self.has_sources = bool(self.counts.get("source_tokens"))

    @property
    def validation(self) -> Integers | TokenizedCorpus:
        """The held-out sentences' ids, or the corpus of the separate validation text."""
        return self.held if self._second is None else self._second

    def tokens(self, sentence: int) -> NDArray[np.int32]:
        """The token ids of a sentence, `[position]`, read-only."""
        start = self._at("token_starts", sentence)
        return self._tokens.array[start : start + int(self.lengths[sentence])]

    def source_lengths(self, sentences: NDArray[Any]) -> Integers:
        """How many tokens the sentences' sources have; 0 without."""
        return np.array(self._columns["source_lengths"].array[sentences], np.int64)

    def sources(self, sentences: NDArray[Any]) -> list[NDArray[np.int32]] | None:
        """The token ids of the sentences' sources, `[token]` each; None for a text without sources."""
        if not self.has_sources:
            return None
        ends = [self._at("token_starts", one) + int(self.lengths[one]) for one in sentences.tolist()]
        return [
            self._tokens.array[end : end + length]
            for end, length in zip(ends, self.source_lengths(sentences).tolist(), strict=True)
        ]

    def text(self, sentence: int) -> str:
        return self._whole_text(sentence).rpartition(PAIR)[2] if self.has_sources else self._whole_text(sentence)

    def source_text(self, sentence: int) -> str:
        return self._whole_text(sentence).partition(PAIR)[0]

    def _whole_text(self, sentence: int) -> str:
        start = self._at("text_starts", sentence)
        length = int(self._columns["text_lengths"].array[sentence])
        return self._text.array[start : start + length].tobytes().decode()

    def documents(self, sentences: NDArray[Any]) -> Integers:
        """The 0-based documents of the sentences' first occurrences."""
        return np.array(self._columns["documents"].array[sentences], np.int64)

    def hashes(self, sentences: NDArray[Any]) -> NDArray[np.uint64]:
        """The 128-bit hashes of the stripped texts of many sentences, `[sentence, 2]`."""
        self._columns["hashes"].release()
        return np.array(self._columns["hashes"].array.reshape(-1, 2)[sentences], np.uint64)

    def batches(self, batch_tokens: int, *, extra: int = 1, boundaries: Sequence[int] = ()) -> Batches:
        """The batches of the mined sentences, kept in this folder (a new call replaces them)."""
        planned = plan_batches(
            self.mined_lengths,
            self.mined,
            directory=self.directory,
            batch_tokens=batch_tokens,
            extra=extra,
            boundaries=boundaries,
            sources=self.source_lengths(self.mined) if self.has_sources else None,
        )
        self.release()
        return planned

    def planned_batches(self) -> Batches:
        """The batches of an earlier `batches`, for processes that share the folder."""
        try:
            return Batches(self.directory)
        except OSError as error:
            raise StoreFailed(f"{self.directory} has no batches ({error.strerror}); prepare the text again") from None

    def release(self) -> None:
        """Returns the mapped pages to the operating system; also called automatically."""
        for each in (*self._columns.values(), self._text, self._tokens):
            each.release()
        self._touches = 0

    def _at(self, column: str, sentence: int) -> int:
        if not 0 <= sentence < self.sentences:
            raise IndexError(f"sentence {sentence} of {self.sentences}")
        self._touches += 1
        if self._touches > TOUCHES:
            self.release()
        return int(self._columns[column].array[sentence])


def _batch_files(directory: Path) -> tuple[Path, Path]:
    return directory / "batch_order.bin", directory / "batch_ends.bin"


def plan_batches(
    lengths: NDArray[Any],
    ids: NDArray[Any],
    *,
    directory: Path,
    batch_tokens: int,
    window: int = WINDOW,
    extra: int = 1,
    boundaries: Sequence[int] = (),
    sources: Integers | None = None,
) -> Batches:
    """The batches of the sentences `ids` (ascending) with token counts `lengths`, kept mapped in `directory`.

    No batch crosses a window of `window` sentences, has more than `batch_tokens` positions (padding and `extra`
    included) unless it is one sentence, has rows on both sides of a boundary, or is padding by more than a twentieth.
    `extra` is how many tokens frame each sentence; it counts towards `boundaries`, which ascend. The
    `sources` of a batch have one number of tokens. The result depends on the arguments alone.
    """
    if batch_tokens < 1 or window < 1:
        raise OptionError(f"batches of {batch_tokens} positions in windows of {window}: both must be at least 1")
    written = 0
    files = _batch_files(directory)
    with storing(directory), files[0].open("wb") as orders, files[1].open("wb") as ends:
        for start in range(0, len(lengths), window):
            widths = np.asarray(lengths[start : start + window], np.int64) + extra
            beside = np.zeros_like(widths) if sources is None else sources[start : start + window]
            order = np.lexsort((beside, widths))
            widths = widths[order]
            changes = np.flatnonzero(np.diff(beside[order])) + 1
            edges = np.unique([0, *np.searchsorted(widths, boundaries, side="right"), *changes, len(widths)])
            cuts = np.concatenate([_cut(widths[a:b], batch_tokens) + a for a, b in pairwise(edges)])
            orders.write(ids[start : start + window][order].astype("<i8").tobytes())
            ends.write((cuts + written).astype("<i8").tobytes())
            written += len(order)
    return Batches(directory)


def _cut(widths: Integers, budget: int) -> Integers:
    total = np.concatenate(([0], np.cumsum(widths)))
    # After each sentence: is the next one longer (or is there none)?
    changes = np.append(widths[1:] != widths[:-1], True)
    cuts: list[int] = []
    start = 0
    while start < len(widths):
        most = max(1, budget // int(widths[start]))
        counts = np.arange(1, min(most, len(widths) - start) + 1)
        longest = widths[start : start + len(counts)]
        areas = counts * longest
        spare = areas - (total[start + 1 : start + 1 + len(counts)] - total[start])
        fits = (areas <= budget) & (spare * PADDING_SHARE <= areas)
        fits[0] = True
        taken = int(np.flatnonzero(fits)[-1]) + 1
        if longest[taken - 1] != longest[0]:
            # A mixed batch: cut at the first change of length that leaves it at least half full (then it is
            # of one length where that is possible), else at the last change, so that the next batch starts a length.
            at = np.flatnonzero(fits[:taken] & changes[start : start + taken])
            half = at[2 * areas[at] >= budget]
            taken = int(half[0]) + 1 if len(half) else taken
        start += taken
        cuts.append(start)
    return np.array(cuts, np.int64)
