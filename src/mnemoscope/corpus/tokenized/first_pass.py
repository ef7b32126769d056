"""The one reading of the text: every sentence's text, tokens and hash appended to files.

Written from front to back: `text.bin` (UTF-8, one sentence after the other), `tokens.bin` (int32), `occurrences.bin`
(one `RECORD` per occurrence of a sentence) and `classes.bin` (uint16 per document: its class for the hold-out rule).
`finalize` finds duplicates and held-out documents later.

While batches of sentences are tokenised, one per core, the text is read and cut for the next.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, final

from mnemoscope.corpus.tokenized.encoded_batches import EncodedBatch, Encoder, encode_batch
from mnemoscope.foundation.processes import usable_cores
from mnemoscope.foundation.shared_change import shared_change

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
class ReadCounts:
    documents: int = 0
    found: int = 0
    """Sentences found, before over-long ones are cut."""
    occurrences: int = 0
    """Sentences stored, windows and repeats counted one by one."""
    windows: int = 0
    tokens: int = 0
    text_bytes: int = 0
    without_tokens: int = 0
    source_tokens: int = 0
    """Tokens of sources, beside `tokens`."""


@final
class FirstPass:
    def __init__(
        self,
        directory: Path,
        *,
        encoder: Encoder,
        longest: int,
        vocabulary: int,
        listed: frozenset[str] | None,
    ) -> None:
        self.counts, self._listed = ReadCounts(), listed
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
        names = ("text", "tokens", "occurrences", "classes")
        self._files: dict[str, IO[bytes]] = {name: (directory / f"{name}.bin").open("wb") for name in names}
        self._alone = ExitStack()
        self._alone.enter_context(one_thread_a_call())

    def close(self) -> None:
        self._workers.shutdown(cancel_futures=True)
        self._alone.close()
        for file in self._files.values():
            # Closing writes buffered data, which a full disk refuses; the file is closed all the same.
            with suppress(OSError):
                file.close()

    def add(self, piece: str, sentences: list[str]) -> None:
        """A piece of the current document, and the sentences that it is cut into."""
        self._hash.update(piece.encode())
        self.counts.found += len(sentences)
        for sentence in sentences:
            self._texts.append(sentence)
            self._documents.append(self.counts.documents)
            self._characters += len(sentence)
            if len(self._texts) >= self._most or self._characters >= self._most_characters:
                self._hand_on()

    def end_document(self) -> None:
        held = _class_of(self._hash.hexdigest(), self._listed)
        self._hash = _new_hash(self._listed)
        self._files["classes"].write(held.to_bytes(2, "little"))
        self.counts.documents += 1

    def flush(self) -> None:
        """Everything added so far is then in the files."""
        self._hand_on()
        while self._encoding:
            self._write(self._encoding.popleft().result())
        for file in self._files.values():
            file.flush()

    def _hand_on(self) -> None:
        if self._texts:
            self._encoding.append(self._workers.submit(self._encode, self._texts, self._documents))
            self._texts, self._documents, self._characters = [], [], 0
        # One batch more than threads, so that no thread waits for the text to be cut.
        while self._encoding and (len(self._encoding) > self._threads + 1 or self._encoding[0].done()):
            self._write(self._encoding.popleft().result())

    def _write(self, batch: EncodedBatch) -> None:
        self._files["text"].write(batch.text)
        self._files["tokens"].write(batch.tokens.tobytes())
        self._files["occurrences"].write(batch.records.tobytes())
        self.counts.windows += batch.windows
        self.counts.without_tokens += batch.without_tokens
        self.counts.occurrences += len(batch.records)
        self.counts.source_tokens += int(batch.records["source"].sum())
        self.counts.tokens += int(batch.records["tokens"].sum())
        self.counts.text_bytes += len(batch.text)
