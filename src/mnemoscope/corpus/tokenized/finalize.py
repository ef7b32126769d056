"""Turns a finished reading into a corpus: distinct, held-out and mined sentences, the columns, and the fingerprint.

Works in chunks on the files of `first_pass`, so memory does not grow with the text. Does not read the source again, and
is idempotent to the byte. The hold-out rule depends on the text alone, not on the seed (definitions.md section 3).
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemoscope.corpus.tokenized.duplicates import CHUNK, count_repeats
from mnemoscope.corpus.tokenized.encoded_batches import RECORD
from mnemoscope.corpus.tokenized.first_pass import LISTED, SHARES
from mnemoscope.corpus.tokenized.tokenized_corpus import COLUMNS, Integers, MappedArray

TEXT_CHUNK = 1 << 22
"""Bytes of text that are hashed at one time."""
_LEAST, _MOST = 200, 1_000
"""The threshold of the hold-out rule is at least 2 % and at most 10 % of the classes ..."""
_ENOUGH = 4_000
"""... and in between the first that holds out this many sentences."""


@dataclass(frozen=True)
class Limits:
    held_out: str
    """`hash` (the threshold rule), `list` (documents that the source names) or `nothing`."""
    sentences: int | None
    tokens: int | None


@dataclass(frozen=True)
class FinalizedCorpus:
    sentences: int
    mined_sentences: int
    mined_tokens: int
    held_out_sentences: int
    held_out_documents: int
    held_out_threshold: int
    """Documents with a class below it are held out (0: nothing, or a list instead)."""
    reached: bool
    """Whether the caps were reached, so that reading on could not add a mined sentence."""


def held_out_threshold(classes: NDArray[np.integer], sentences: NDArray[np.integer]) -> int:
    """The threshold for documents of these `classes` with so many `sentences` each; classes below it are held out."""
    counts = np.bincount(classes, weights=sentences, minlength=SHARES)[:_MOST]
    reached = np.flatnonzero(np.cumsum(counts) >= _ENOUGH)
    first = int(reached[0]) + 1 if len(reached) else _MOST
    return min(_MOST, max(_LEAST, first))


def expected_share(sentences: float) -> float:
    """The approximate share of its sentences that the rule holds out of a text of so many."""
    return min(_MOST, max(_LEAST, SHARES * _ENOUGH / max(1, sentences))) / SHARES


def finalize(directory: Path, occurrences: int, *, limits: Limits) -> FinalizedCorpus:
    repeats = count_repeats(
        lambda start, stop: _records(directory, start, stop)["hash"], occurrences, directory=directory
    )
    classes = np.fromfile(directory / "classes.bin", "<u2")
    held = _held_classes(directory, repeats, classes=classes, limits=limits)
    final = _write_columns(directory, repeats, classes=classes, held=held, limits=limits)
    if final.mined_sentences == 0 and final.sentences and held.any():
        # All documents of a small text may be below the threshold; then nothing is held out.
        held[:] = False
        final = _write_columns(directory, repeats, classes=classes, held=held, limits=limits)
    (directory / "repeats.bin").unlink()
    return final


def _records(directory: Path, start: int, stop: int) -> NDArray[Any]:
    return np.fromfile(directory / "occurrences.bin", RECORD, stop - start, offset=start * RECORD.itemsize)


def _distinct(directory: Path, repeats: MappedArray) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yields, chunk by chunk, all records, the places of first occurrences, and how often these occur."""
    for start in range(0, len(repeats.array), CHUNK):
        stop = min(start + CHUNK, len(repeats.array))
        times = np.array(repeats.array[start:stop])
        repeats.release()
        first = np.flatnonzero(times)
        yield _records(directory, start, stop), first, times[first]


def _held_classes(
    directory: Path, repeats: MappedArray, *, classes: NDArray[np.uint16], limits: Limits
) -> NDArray[np.bool_]:
    held = np.zeros(SHARES + 1, np.bool_)
    if limits.held_out == "list":
        held[LISTED] = True
    elif limits.held_out == "hash":
        sentences = np.zeros(SHARES, np.int64)
        for records, first, _ in _distinct(directory, repeats):
            sentences += np.bincount(classes[records["document"][first]], minlength=SHARES)
        held[: held_out_threshold(np.arange(SHARES), sentences)] = True
    return held


def _write_columns(
    directory: Path, repeats: MappedArray, *, classes: NDArray[np.uint16], held: NDArray[np.bool_], limits: Limits
) -> FinalizedCorpus:
    text_at = token_at = sentences = mined = mined_tokens = held_sentences = 0
    reached = False
    with ExitStack() as stack:
        files = {name: stack.enter_context((directory / f"{name}.bin").open("wb")) for name in COLUMNS}
        for records, first, times in _distinct(directory, repeats):
            text_ends = text_at + np.cumsum(records["text"], dtype=np.int64)
            token_ends = token_at + np.cumsum(records["tokens"].astype(np.int64) + records["source"])
            text_at, token_at = int(text_ends[-1]), int(token_ends[-1])
            lengths = records["tokens"][first].astype(np.int64)
            out = held[classes[records["document"][first]]]
            ids = np.arange(sentences, sentences + len(first))
            taken = np.flatnonzero(~out)
            if reached:
                taken = taken[:0]
            else:
                kept, reached = _within(lengths[taken], mined=mined, tokens=mined_tokens, limits=limits)
                taken = taken[:kept]
            columns = {
                "text_starts": text_ends[first] - records["text"][first],
                "text_lengths": records["text"][first],
                "token_starts": token_ends[first] - lengths - records["source"][first],
                "lengths": lengths,
                "source_lengths": records["source"][first],
                "documents": records["document"][first],
                "multiplicity": times,
                "held_out": out,
                "hashes": records["hash"][first].reshape(-1),
                "mined": ids[taken],
                "mined_lengths": lengths[taken],
                "held": ids[out],
            }
            for name, values in columns.items():
                files[name].write(values.astype(COLUMNS[name]).tobytes())
            sentences += len(first)
            mined += len(taken)
            mined_tokens += int(lengths[taken].sum())
            held_sentences += int(out.sum())
    below, held_documents = int(held[:SHARES].sum()), int(held[classes].sum())
    return FinalizedCorpus(sentences, mined, mined_tokens, held_sentences, held_documents, below, reached)


def _within(lengths: Integers, *, mined: int, tokens: int, limits: Limits) -> tuple[int, bool]:
    """How many more sentences the caps allow, always at least the very first; and whether a cap is reached."""
    kept, ends = len(lengths), tokens + np.cumsum(lengths)
    if limits.sentences is not None:
        kept = min(kept, limits.sentences - mined)
    if limits.tokens is not None:
        fitting = int(np.searchsorted(ends, limits.tokens, side="right"))
        kept = min(kept, max(fitting, 1 if mined == 0 else 0))
    if kept < len(lengths) or mined + kept == limits.sentences:
        return kept, True
    return kept, limits.tokens is not None and kept > 0 and int(ends[kept - 1]) >= limits.tokens


def fingerprint(directory: Path, sentences: int) -> str:
    """The sha256 of four sha256s over all distinct sentences: byte lengths, texts, documents, held-out flags."""
    of_lengths, of_texts, of_documents, of_flags = digests = [hashlib.sha256() for _ in range(4)]
    text = MappedArray(directory / "text.bin", np.uint8)
    names = ("text_starts", "text_lengths", "documents", "held_out")
    columns = [MappedArray(directory / f"{name}.bin", COLUMNS[name]) for name in names]
    for chunk in range(0, sentences, CHUNK):
        starts, lengths, documents, held = (np.array(column.array[chunk : chunk + CHUNK]) for column in columns)
        ends = starts + lengths
        # Adjacent distinct sentences are read as one run.
        breaks = np.flatnonzero(starts[1:] != ends[:-1])
        runs = zip([starts[0], *starts[1:][breaks]], [*ends[:-1][breaks], ends[-1]], strict=True)
        for start, stop in runs:
            for at in range(start, stop, TEXT_CHUNK):
                of_texts.update(text.array[at : min(at + TEXT_CHUNK, stop)].tobytes())
                if stop - start > TEXT_CHUNK:
                    text.release()
        for digest, values in ((of_lengths, lengths), (of_documents, documents), (of_flags, held)):
            digest.update(values.tobytes())
        for mapped in (text, *columns):
            mapped.release()
    return hashlib.sha256(b"".join(each.digest() for each in digests)).hexdigest()
