"""The one reading of the text: every sentence's text, tokens and hash appended to files, resumable at any moment.

Written here, each from front to back: `text.bin` (UTF-8, one sentence after the other), `tokens.bin` (int32),
`occurrences.bin` (one `RECORD` per sentence as it occurs, repeats included) and `classes.bin` (uint16 per document:
its class for the hold-out rule). A checkpoint makes them durable and notes their sizes; whoever starts again cuts them
back to it and skips what was read. Duplicates and held-out documents are found later, by `finalize`.

While one batch of sentences is being tokenised, on all cores, the text goes on being read and cut for the next.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol, final

import numpy as np

from mnemoscope.corpus.duplicates import text_hashes
from mnemoscope.corpus.sentences import cut_windows
from mnemoscope.errors import CorpusUnreadable, ModelDamaged, PromptError

RECORD = np.dtype([("hash", "<u8", (2,)), ("document", "<i8"), ("text", "<u4"), ("tokens", "<u4")])
"""One sentence as it occurs: hash, document, bytes of text, number of tokens."""

FILES = ("text.bin", "tokens.bin", "occurrences.bin", "classes.bin")
SHARES = 10_000
"""Documents hash into this many classes."""
LISTED = SHARES
"""The class of a document that a source's own list holds out; every other document of it has class 0."""

_BATCH = 2_000
_BATCH_CHARACTERS = 1 << 20


class Encoder(Protocol):
    """What a tokenizer must be able to do: neither method adds special tokens."""

    def encode(self, texts: list[str], /) -> Sequence[Sequence[int]]:
        """The token ids of every text."""

    def offsets(self, text: str, /) -> Sequence[tuple[int, int]]:
        """The span of characters of every token of one text."""


def document_hash(text: str) -> int:
    """The document's class in 0..9999: its whole blake2b hash as one number, modulo 10,000."""
    return document_class(text, None)


def document_class(text: str, listed: frozenset[str] | None) -> int:
    """The document's class for the hold-out rule: `LISTED` or 0 where a source lists what it holds out."""
    found = _new_hash(listed)
    found.update(text.encode())
    return _class_of(found.hexdigest(), listed)


def _new_hash(listed: frozenset[str] | None) -> hashlib.blake2b:
    # The hold-out rule hashes the whole document, a source's own list names it by a shorter hash.
    return hashlib.blake2b(digest_size=64 if listed is None else 8)


def _class_of(digest: str, listed: frozenset[str] | None) -> int:
    return LISTED * (digest in listed) if listed is not None else int(digest, 16) % SHARES


@dataclass(slots=True)
class ReadState:
    """How far the reading is; everything that a checkpoint must know."""

    documents: int = 0
    """Documents read to their end."""
    pieces: int = 0
    """Pieces read of the document that is being read."""
    found: int = 0
    """Sentences found, before over-long ones are cut."""
    look: int = 0
    """With a cap: the number of found sentences at which to see next whether it is reached."""
    occurrences: int = 0
    """Sentences stored, windows one by one and repeats included."""
    windows: int = 0
    """Of these, how many are windows of over-long sentences."""
    tokens: int = 0
    text_bytes: int = 0
    without_tokens: int = 0
    """Sentences left out because the tokenizer finds no token in them."""

    def sizes(self) -> dict[str, int]:
        """The size that every file has here."""
        sizes = (self.text_bytes, 4 * self.tokens, RECORD.itemsize * self.occurrences, 2 * self.documents)
        return dict(zip(FILES, sizes, strict=True))


@dataclass(frozen=True)
class _Encoded:
    """A batch of sentences as it is stored: text, tokens and document of each, over-long ones cut into windows."""

    parts: list[tuple[str, Sequence[int], int]]
    windows: int
    without_tokens: int


@final
class FirstPass:
    """The four files, open for appending at one state of the reading."""

    def __init__(
        self,
        directory: Path,
        state: ReadState,
        *,
        encoder: Encoder,
        longest: int,
        vocabulary: int,
        listed: frozenset[str] | None,
    ) -> None:
        """Opens the files in `directory` and cuts them back to `state`."""
        self.state = state
        self._encoder = encoder
        self._longest = longest
        self._vocabulary = vocabulary
        self._listed = listed
        self._waiting: list[tuple[str, int]] = []
        """Sentences taken and not handed on yet, each with its document."""
        self._characters = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._encoding: Future[_Encoded] | None = None
        """The batch that is being tokenised."""
        self._hash = _new_hash(listed)
        self._files: dict[str, IO[bytes]] = {}
        for name, size in state.sizes().items():
            file = (directory / name).open("r+b" if (directory / name).exists() else "w+b")
            self._files[name] = file
            file.truncate(size)
            file.seek(size)

    def close(self) -> None:
        """Closes the files; what was not flushed is lost, which a restart makes good."""
        self._worker.shutdown(cancel_futures=True)
        for file in self._files.values():
            # Closing writes what is still buffered, which a full disk refuses; the file is closed all the same.
            with suppress(OSError):
                file.close()

    def hash_piece(self, piece: str) -> None:
        """Takes a piece into the hash of the document that is being read."""
        self._hash.update(piece.encode())

    def add(self, sentences: list[str]) -> None:
        """Takes the sentences of one more piece of the document that is being read."""
        self.state.pieces += 1
        self.state.found += len(sentences)
        for sentence in sentences:
            self._waiting.append((sentence, self.state.documents))
            self._characters += len(sentence)
            if len(self._waiting) >= _BATCH or self._characters >= _BATCH_CHARACTERS:
                self._hand_on()

    def end_document(self) -> None:
        """Closes the document that is being read."""
        held = _class_of(self._hash.hexdigest(), self._listed)
        self._hash = _new_hash(self._listed)
        self._files["classes.bin"].write(held.to_bytes(2, "little"))
        self.state.documents += 1
        self.state.pieces = 0

    def checkpoint(self) -> dict[str, Any]:
        """Makes everything taken so far durable; returns the state, which is to be stored then."""
        self.flush()
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return asdict(self.state)

    def flush(self) -> None:
        """Writes the sentences taken but not written yet; raises ModelDamaged for a token id beyond the head's rows."""
        self._hand_on()
        self._hand_on()

    def _hand_on(self) -> None:
        """Has the sentences that wait tokenised, and writes the batch before them; raises ModelDamaged."""
        done, self._encoding = self._encoding, None
        if self._waiting:
            self._encoding = self._worker.submit(self._encode, self._waiting)
            self._waiting, self._characters = [], 0
        if done is not None:
            encoded = done.result()
            self.state.windows += encoded.windows
            self.state.without_tokens += encoded.without_tokens
            if encoded.parts:
                self._write(*zip(*encoded.parts, strict=True))

    def _encode(self, sentences: list[tuple[str, int]]) -> _Encoded:
        try:
            encoded = self._encoder.encode([text for text, _ in sentences])
        except PromptError as error:
            raise CorpusUnreadable(f"documents from {sentences[0][1]} on cannot be tokenised: {error}") from None
        parts: list[tuple[str, Sequence[int], int]] = []
        windows = without_tokens = 0
        for (text, document), ids in zip(sentences, encoded, strict=True):
            if not ids:
                without_tokens += 1
            elif len(ids) <= self._longest:
                parts.append((text, ids, document))
            else:
                cut = cut_windows(text, ids, offsets=self._encoder.offsets(text), longest=self._longest)
                kept = [(part, own, document) for part, own in cut if part and not part.isspace()]
                windows += len(kept)
                parts += kept
        return _Encoded(parts, windows, without_tokens)

    def _write(self, texts: Sequence[str], tokens: Sequence[Sequence[int]], documents: Sequence[int]) -> None:
        encoded = [text.encode() for text in texts]
        records = np.zeros(len(texts), RECORD)
        records["hash"] = text_hashes(texts)
        records["document"] = documents
        records["text"] = [len(each) for each in encoded]
        records["tokens"] = [len(each) for each in tokens]
        flat = np.fromiter(chain.from_iterable(tokens), np.int64, int(records["tokens"].sum()))
        wrong = np.flatnonzero((flat < 0) | (flat >= self._vocabulary))
        if len(wrong):
            ends = np.cumsum(records["tokens"], dtype=np.int64)
            sentence = int(np.searchsorted(ends, wrong[0], side="right"))
            text, place = texts[sentence], int(wrong[0] - ends[sentence]) + int(records["tokens"][sentence])
            spans = self._encoder.offsets(text)
            # A window's own text can be read as other tokens than those that were cut.
            named = f" ({text[slice(*spans[place])]!r})" if len(spans) == records["tokens"][sentence] else ""
            raise ModelDamaged(
                f"token id {flat[wrong[0]]}{named} is beyond the {self._vocabulary} rows of the model's head "
                f"(document {documents[sentence]}, sentence {text[:60]!r}); use the tokenizer that belongs to the model"
            )
        self._files["text.bin"].writelines(encoded)
        self._files["tokens.bin"].write(flat.astype("<i4").tobytes())
        self._files["occurrences.bin"].write(records.tobytes())
        self.state.occurrences += len(texts)
        self.state.tokens += len(flat)
        self.state.text_bytes += sum(map(len, encoded))
