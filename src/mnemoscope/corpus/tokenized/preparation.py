"""From a source to a tokenized corpus: read once, finalized, and described.

`copy.json` in the folder is written last: the arguments of the corpus, its counts, and the hash of every file and of
itself. A corpus that is there is taken up if all of that is so. A folder of other arguments, of a file that has changed
since, of a reading that was broken off, or with a damaged file is emptied of this room's own files and made anew.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.corpus.sources.opening import Source
from mnemoscope.corpus.sources.row_fields import Render
from mnemoscope.corpus.sources.sentences import check_split, split_sentences
from mnemoscope.corpus.tokenized.duplicates import count_repeats
from mnemoscope.corpus.tokenized.encoded_batches import Encoder
from mnemoscope.corpus.tokenized.finalize import FinalizedCorpus, Limits, finalize, fingerprint
from mnemoscope.corpus.tokenized.first_pass import FirstPass
from mnemoscope.corpus.tokenized.tokenized_corpus import COLUMNS, TokenizedCorpus
from mnemoscope.errors import CorpusEmpty, CorpusUnreadable
from mnemoscope.foundation.files import file_entry, flush, json_bytes, read_object, remove_strays, storing, write_json
from mnemoscope.foundation.progress import NOTE, Progress, ignore_progress

FORMAT = 4
FIRST_LOOK = 65_536
"""With a cap, the corpus is finalized after so many sentences and again whenever their number has doubled."""

_DESCRIPTION = "copy.json"
_FILES = ("text.bin", "tokens.bin", "classes.bin", *(f"{column}.bin" for column in COLUMNS))
PROGRESS_EVERY = 0.2
"""Seconds between two reports of progress."""
_READ_COUNTS = ("documents", "windows", "without_tokens", "tokens", "text_bytes")


def prepare(
    source: Source,
    encoder: Encoder,
    *,
    directory: Path,
    longest: int,
    split: str,
    vocabulary: int,
    max_sentences: int | None = None,
    max_tokens: int | None = None,
    validation: Source | None = None,
    render: Render | None = None,
    made_with: Mapping[str, str] | None = None,
    progress: Progress = ignore_progress,
) -> TokenizedCorpus:
    """The tokenized corpus of a text, made in `directory` or, if it is there already and whole, opened.

    `directory` is a folder for this alone. No sentence has more than `longest` tokens (longer ones are cut into
    windows), and every token id is below `vocabulary`, the rows of the head. At most `max_sentences` distinct sentences
    are mined, in corpus order, with at most `max_tokens`; a sentence that does not fit whole ends the mined text.

    `validation` is a separate text for the questions on held-out prefixes; nothing is held out then. `render` makes the
    text of a chat. `made_with` holds what else decides the corpus, above all the tokenizer's fingerprint; a corpus
    with other entries is made anew. `progress` counts bytes of the text, and is told of one that is prepared again.

    Raises OptionError, CorpusNotFound, CorpusUnreadable, CorpusEmpty (no usable sentence), ModelDamaged (a token id
    beyond the head's rows), StoreFailed.
    """
    check_split(split)
    make = partial(
        _Preparation,
        encoder=encoder,
        longest=longest,
        split=split,
        vocabulary=vocabulary,
        render=render,
        made_with=dict(made_with or {}),
        progress=progress,
    )
    with storing(directory):
        if validation is None:
            held_out = "hash" if source.held_out is None else "list"
            return make(source, directory, Limits(held_out, max_sentences, max_tokens)).corpus()
        second = make(validation, directory / "validation", Limits("nothing", None, None)).corpus()
        corpus = make(source, directory, Limits("nothing", max_sentences, max_tokens)).corpus()
        counts = corpus.counts | {"validation": second.counts | {"overlap_sentences": _overlap(corpus, second)}}
        return TokenizedCorpus(directory, counts=counts, fingerprint=corpus.fingerprint, second=second)


def open_prepared(directory: Path, *, validation: bool) -> TokenizedCorpus:
    """Opens the corpus that `prepare` finished in `directory`, without writing or reading it; sizes are compared."""
    stored, sizes = _description(directory), {path.name: path.stat().st_size for path in directory.glob("*.bin")}
    if not stored or any(sizes.get(name) != entry["bytes"] for name, entry in stored["files"].items()):
        raise CorpusUnreadable(f"{directory} does not hold a completely prepared text; prepare it again")
    second = open_prepared(directory / "validation", validation=False) if validation else None
    return TokenizedCorpus(directory, counts=stored["counts"], fingerprint=stored["fingerprint"], second=second)


@dataclass(frozen=True)
class _Preparation:
    source: Source
    directory: Path
    limits: Limits
    encoder: Encoder
    longest: int
    split: str
    vocabulary: int
    render: Render | None
    made_with: dict[str, str]
    progress: Progress

    @property
    def listed_documents(self) -> frozenset[str] | None:
        return self.source.held_out if self.limits.held_out == "list" else None

    @cached_property
    def arguments(self) -> Any:
        """What must be equal for the folder's files to be reused."""
        values = {
            "format": FORMAT,
            "source": self.source.identity,
            "listed": hashlib.sha256(json.dumps(sorted(self.listed_documents or ())).encode()).hexdigest(),
            "made_with": self.made_with,
            "longest": self.longest,
            "split": self.split,
            "vocabulary": self.vocabulary,
            "rule": asdict(self.limits),
        }
        # Through JSON and back, to compare equal to the stored form.
        return json.loads(json.dumps(values))

    def corpus(self) -> TokenizedCorpus:
        source, directory = self.source, self.directory
        directory.mkdir(parents=True, exist_ok=True)
        remove_strays(directory)
        if stored := self._taken_up():
            return TokenizedCorpus(directory, counts=stored["counts"], fingerprint=stored["fingerprint"])
        reading = FirstPass(
            directory,
            encoder=self.encoder,
            longest=self.longest,
            vocabulary=self.vocabulary,
            listed=self.listed_documents,
        )
        with closing(reading):
            final, whole = self._read(reading)
        read = reading.counts
        if final.sentences == 0:
            raise CorpusEmpty(f"{source.spec}: no usable sentence in {read.documents} documents; give another text")
        counts = {name: count for name, count in asdict(final).items() if name != "reached"}
        counts |= {name: getattr(read, name) for name in _READ_COUNTS}
        counts |= {"duplicates": read.occurrences - final.sentences, "read_whole": whole}
        if read.source_tokens:
            counts["source_tokens"] = read.source_tokens
        if source.draw is not None:
            counts["documents_passed_over"] = source.meter.passed_over
        if source.rows.bad.most:
            counts["bad_rows"] = source.rows.bad.document()
        mark = fingerprint(directory, final.sentences)
        (directory / "occurrences.bin").unlink()
        for name in _FILES:  # before they are described: a power cut could leave zeros of that size
            flush(directory / name)
        flush(directory)
        files = {name: file_entry(directory / name) for name in _FILES}
        described = {"arguments": self.arguments, "counts": counts, "fingerprint": mark, "files": files}
        write_json(directory / _DESCRIPTION, described | {"sha256": _hash_of(described)})
        return TokenizedCorpus(directory, counts=counts, fingerprint=mark)

    def _taken_up(self) -> dict[str, Any]:
        """What describes the corpus that is there already; else empties the folder, and says why if it was damaged."""
        directory, left = self.directory, sorted(self.directory.glob("*.bin*"))
        stored = _description(directory)
        if stored.get("arguments") == self.arguments:
            there = {path.name for path in left}
            wrong = [
                name for name in _FILES if name not in there or file_entry(directory / name) != stored["files"][name]
            ]
            if not wrong:
                return stored
            why = f"{directory / wrong[0]} was damaged since the run was stopped"
        else:
            why = "" if stored or not left else f"{directory} holds a text that was not prepared to its end, or damaged"
        if why:
            self.progress(NOTE, 0, None, f"{why}; the text is prepared again")
        for path in (directory / _DESCRIPTION, *left):
            path.unlink(missing_ok=True)
        return {}

    def _read(self, reading: FirstPass) -> tuple[FinalizedCorpus, bool]:
        """Reads the source; returns the finalized corpus, and whether the source was read to its end."""
        source, read, limits, split = self.source, reading.counts, self.limits, self.split
        look = FIRST_LOOK if (limits.sentences, limits.tokens) != (None, None) else math.inf
        while look < (limits.sentences or 0):
            look *= 2
        options: dict[str, Any] = {"vocabulary": self.vocabulary, "render": self.render}
        pieces = source.pieces(**options)
        if split != "sentence":  # these keep the text as it is, so a document is cut only when it is whole
            pieces = ((text, True) for text in source.documents(**options))
        shown = time.monotonic()
        for piece, ends in pieces:
            reading.add(piece, split_sentences(piece, split))
            if ends:
                reading.end_document()
            if ends and read.found >= look:
                reading.flush()
                final = finalize(self.directory, read.occurrences, limits=limits)
                if final.reached:
                    return final, False
                while look <= read.found:
                    look *= 2
            if time.monotonic() - shown >= PROGRESS_EVERY:
                self.progress("reading text", source.meter.done, source.size, "bytes")
                shown = time.monotonic()
        reading.flush()
        self.progress("reading text", source.meter.done, source.size, "bytes")
        return finalize(self.directory, read.occurrences, limits=limits), True


def _description(directory: Path) -> dict[str, Any]:
    """What `copy.json` says of a finished corpus; empty if it is missing or damaged."""
    stored = read_object(directory / _DESCRIPTION)
    sealed = stored.pop("sha256", None)
    return stored if sealed == _hash_of(stored) else {}


def _hash_of(described: dict[str, Any]) -> str:
    return hashlib.sha256(json_bytes(described)).hexdigest()


def _overlap(corpus: TokenizedCorpus, second: TokenizedCorpus) -> int:
    mined = len(corpus.mined)

    def read(start: int, stop: int) -> Any:
        first = corpus.hashes(corpus.mined[start : min(stop, mined)])
        rest = second.hashes(np.arange(max(start, mined) - mined, max(stop, mined) - mined))
        return np.concatenate((first, rest))

    repeats = count_repeats(read, mined + second.sentences, directory=corpus.directory, name="overlap.bin")
    shared = int((repeats.array[mined:] == 0).sum())
    (corpus.directory / "overlap.bin").unlink()
    return shared
