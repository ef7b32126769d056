"""The one reading of the text: every sentence's text, tokens and hash appended to files, resumable at any moment.

Written from front to back: `text.bin` (UTF-8, one sentence after the other), `tokens.bin` (int32), `occurrences.bin`
(one `RECORD` per occurrence of a sentence) and `classes.bin` (uint16 per document: its class for the hold-out rule). A
checkpoint makes them durable and notes their sizes; a restart truncates them to these sizes and skips the text read
before. `finalize` finds duplicates and held-out documents later.

While batches of sentences are tokenised, one per core, the text is read and cut for the next.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, final

from mnemoscope.corpus.tokenized.encoded_batches import RECORD, EncodedBatch, Encoder, encode_batch
from mnemoscope.foundation.cores import usable_cores
from mnemoscope.foundation.shared_change import shared_change

FILES = ("text.bin", "tokens.bin", "occurrences.bin", "classes.bin")
SHARES = 10_000
LISTED = SHARES
"""The class of a document that a source's own list holds out; its other documents have class 0."""

SENTENCES_AT_ONCE, CHARACTERS_AT_ONCE = 2_000, 1 << 20
"""Sentences and characters that are tokenised at one time, in all threads together ..."""
BATCH_SENTENCES, BATCH_CHARACTERS = 250, 1 << 17
"""... and at least in each of them."""
_THREADS = 16
"""Most threads used: the work done in Python keeps one or two cores busy."""
_VARIABLE = "TOKENIZERS_PARALLELISM"


@shared_change
def one_thread_a_call() -> Iterator[None]:
    """Makes calls of tokenizers in this process use the caller's thread; a user's own setting stays. Concurrent callers
    gain next to nothing otherwise: they free what the library's threads allocate, and wait for each other (docs/log).
    """
    if _VARIABLE in os.environ:
        yield
        return
    os.environ[_VARIABLE] = "false"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def document_hash(text: str) -> int:
    """The document's class in 0..9999: its whole blake2b hash as one number, modulo 10,000."""
    return document_class(text, None)


def document_class(text: str, listed: frozenset[str] | None) -> int:
    """The document's class for the hold-out rule: `LISTED` or 0 where a source lists its held-out documents."""
    digest = _new_hash(listed)
    digest.update(text.encode())
    return _class_of(digest.hexdigest(), listed)


def _new_hash(listed: frozenset[str] | None) -> hashlib.blake2b:
    # A source's own list uses a shorter hash than the hold-out rule.
    return hashlib.blake2b(digest_size=64 if listed is None else 8)


def _class_of(digest: str, listed: frozenset[str] | None) -> int:
    return LISTED * (digest in listed) if listed is not None else int(digest, 16) % SHARES


@dataclass(slots=True)
class ReadState:
    documents: int = 0
    pieces: int = 0
    """Pieces read of the current document."""
    found: int = 0
    """Sentences found, before over-long ones are cut."""
    look: int = 0
    """With a cap: the number of found sentences at which to check next whether it is reached."""
    occurrences: int = 0
    """Sentences stored, windows and repeats counted one by one."""
    windows: int = 0
    tokens: int = 0
    text_bytes: int = 0
    without_tokens: int = 0
    passed_over: int = 0
    """Documents that were read but not drawn."""
    bad_rows: dict[str, int] = field(default_factory=dict)
    """The skipped rows, each with how many came before it."""

    def sizes(self) -> dict[str, int]:
        sizes = (self.text_bytes, 4 * self.tokens, RECORD.itemsize * self.occurrences, 2 * self.documents)
        return dict(zip(FILES, sizes, strict=True))


@final
class FirstPass:
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
        self.state, self._listed = state, listed
        self._encode = partial(encode_batch, encoder, longest=longest, vocabulary=vocabulary)
        self._texts: list[str] = []
        self._documents: list[int] = []
        self._characters = 0
        self._threads = min(len(usable_cores()), _THREADS)
        self._most = max(BATCH_SENTENCES, SENTENCES_AT_ONCE // self._threads)
        self._most_characters = max(BATCH_CHARACTERS, CHARACTERS_AT_ONCE // self._threads)
        self._workers = ThreadPoolExecutor(self._threads, thread_name_prefix="tokenize")
        self._encoding: deque[Future[EncodedBatch]] = deque()
        """The batches submitted and not written yet, in order."""
        self._hash = _new_hash(listed)
        self._files: dict[str, IO[bytes]] = {}
        for name, size in state.sizes().items():
            file = (directory / name).open("r+b" if (directory / name).exists() else "w+b")
            self._files[name] = file
            file.truncate(size)
            file.seek(size)
        self._alone = ExitStack()
        self._alone.enter_context(one_thread_a_call())

    def close(self) -> None:
        """Closes the files. Unflushed data is lost; a restart reads it again."""
        self._workers.shutdown(cancel_futures=True)
        self._alone.close()
        for file in self._files.values():
            # Closing writes buffered data, which a full disk refuses; the file is closed all the same.
            with suppress(OSError):
                file.close()

    def hash_piece(self, piece: str) -> None:
        self._hash.update(piece.encode())

    def add(self, sentences: list[str]) -> None:
        self.state.pieces += 1
        self.state.found += len(sentences)
        for sentence in sentences:
            self._texts.append(sentence)
            self._documents.append(self.state.documents)
            self._characters += len(sentence)
            if len(self._texts) >= self._most or self._characters >= self._most_characters:
                self._hand_on()

    def end_document(self) -> None:
        held = _class_of(self._hash.hexdigest(), self._listed)
        self._hash = _new_hash(self._listed)
        self._files["classes.bin"].write(held.to_bytes(2, "little"))
        self.state.documents += 1
        self.state.pieces = 0

    def checkpoint(self) -> dict[str, Any]:
        """Makes everything added so far durable; returns the state, which the caller then stores."""
        self.flush()
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return asdict(self.state)

    def flush(self) -> None:
        self._hand_on()
        while self._encoding:
            self._write(self._encoding.popleft().result())

    def _hand_on(self) -> None:
        if self._texts:
            self._encoding.append(self._workers.submit(self._encode, self._texts, self._documents))
            self._texts, self._documents, self._characters = [], [], 0
        # One batch more than threads, so that no thread waits for the text to be cut.
        while self._encoding and (len(self._encoding) > self._threads + 1 or self._encoding[0].done()):
            self._write(self._encoding.popleft().result())

    def _write(self, batch: EncodedBatch) -> None:
        self._files["text.bin"].write(batch.text)
        self._files["tokens.bin"].write(batch.tokens.tobytes())
        self._files["occurrences.bin"].write(batch.records.tobytes())
        self.state.windows += batch.windows
        self.state.without_tokens += batch.without_tokens
        self.state.occurrences += len(batch.records)
        self.state.tokens += len(batch.tokens)
        self.state.text_bytes += len(batch.text)
