"""The text as mining reads it: distinct sentences with ids, tokens, documents, memory-mapped from one folder.

Made by `preparation`, only read here. Columns are files of numbers with one entry per distinct sentence; text and
tokens are looked up through them. Reading gives the pages back after a while, so a walk over any number of sentences
stays within a few megabytes of resident memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from mnemoscope.corpus.batches import Batches, plan_batches
from mnemoscope.corpus.disk import MappedArray

COLUMNS: Final[dict[str, str]] = {
    "text_starts": "<i8",
    "text_lengths": "<i8",
    "token_starts": "<i8",
    "lengths": "<i4",
    "documents": "<i8",
    "multiplicity": "<u4",
    "held_out": "?",
    "hashes": "<u8",
    "mined": "<i8",
    "mined_lengths": "<i4",
    "held": "<i8",
}
"""The finished columns and the type of their entries; the file of each is its name with `.bin`."""

_TOUCHES: Final = 1 << 15


@final
class WorkingCopy:
    """Distinct sentences 0..sentences-1 in order of first occurrence, held-out ones included."""

    def __init__(
        self, directory: Path, *, counts: Mapping[str, Any], fingerprint: str, second: WorkingCopy | None = None
    ) -> None:
        """Map the finished files in `directory`; `second` is the copy of a validation text of its own."""
        self.directory = directory
        self.counts: dict[str, Any] = dict(counts)
        self.fingerprint = fingerprint
        self._columns = {name: MappedArray(directory / f"{name}.bin", kind) for name, kind in COLUMNS.items()}
        self._text = MappedArray(directory / "text.bin", np.uint8)
        self._tokens = MappedArray(directory / "tokens.bin", "<i4")
        self._touches = 0
        self._second = second
        self.lengths: NDArray[np.int32] = self._columns["lengths"].array
        """Tokens of every sentence."""
        self.multiplicity: NDArray[np.uint32] = self._columns["multiplicity"].array
        """How often every sentence occurs."""
        self.held_out: NDArray[np.bool_] = self._columns["held_out"].array
        """Whether every sentence is kept out of mining."""
        self.mined: NDArray[np.int64] = self._columns["mined"].array
        """Ids of the sentences to be mined, ascending: not held out and within the caps."""
        self.mined_lengths: NDArray[np.int32] = self._columns["mined_lengths"].array
        """Tokens of every sentence to be mined."""
        self.held: NDArray[np.int64] = self._columns["held"].array
        """Ids of the held-out sentences, ascending."""
        self.sentences: int = len(self.lengths)

    @property
    def validation(self) -> NDArray[np.int64] | WorkingCopy:
        """The held-out sentences' ids, or the copy of the validation text where one was given."""
        return self.held if self._second is None else self._second

    def tokens(self, sentence: int) -> NDArray[np.int32]:
        """Return the token ids of a sentence, `[position]`, read-only."""
        start = self._at("token_starts", sentence)
        return self._tokens.array[start : start + int(self.lengths[sentence])]

    def text(self, sentence: int) -> str:
        """Return the text of a sentence as stored."""
        start = self._at("text_starts", sentence)
        length = int(self._columns["text_lengths"].array[sentence])
        return self._text.array[start : start + length].tobytes().decode()

    def document(self, sentence: int) -> int:
        """Return the 0-based document of the sentence's first occurrence."""
        return self._at("documents", sentence)

    def documents(self, sentences: NDArray[Any]) -> NDArray[np.int64]:
        """Return the documents of many sentences."""
        return np.array(self._columns["documents"].array[sentences], np.int64)

    def hashes(self, sentences: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the 128-bit hashes of the stripped texts of many sentences, `[sentence, 2]`."""
        self._columns["hashes"].release()
        return np.array(self._columns["hashes"].array.reshape(-1, 2)[sentences], np.uint64)

    def batches(self, batch_tokens: int, *, extra: int = 1) -> Batches:
        """Return the batches of the mined sentences, kept in this folder (a new call replaces them).

        Raises:
            OptionError, StoreFailed: as `plan_batches`.
        """
        planned = plan_batches(
            self.mined_lengths, batch_tokens=batch_tokens, ids=self.mined, extra=extra, directory=self.directory
        )
        self.release()
        return planned

    def release(self) -> None:
        """Give the mapped pages back to the operating system; called by itself now and then."""
        for each in (*self._columns.values(), self._text, self._tokens):
            each.release()
        self._touches = 0

    def _at(self, column: str, sentence: int) -> int:
        if not 0 <= sentence < self.sentences:
            raise IndexError(f"sentence {sentence} of {self.sentences}")
        self._touches += 1
        if self._touches > _TOUCHES:
            self.release()
        return int(self._columns[column].array[sentence])
