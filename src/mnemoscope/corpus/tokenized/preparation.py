"""From a source to a tokenized corpus: read once, finalize; after an interruption it continues from a checkpoint.

`copy.json` in the folder stores the arguments of the corpus, the position of the reading, and, written last, that it is
finished. A folder made with other arguments, or from a file that has changed since, is emptied of this room's own files
and made anew.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
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
from mnemoscope.corpus.tokenized.first_pass import FILES, FirstPass, ReadState
from mnemoscope.corpus.tokenized.tokenized_corpus import COLUMNS, TokenizedCorpus
from mnemoscope.errors import CorpusEmpty, CorpusUnreadable
from mnemoscope.foundation.files import flush, read_object, remove_strays, storing, write_bytes
from mnemoscope.foundation.progress import Progress, ignore_progress

FORMAT = 2
FIRST_LOOK = 65_536
"""With a cap, the corpus is finalized after so many sentences and again whenever their number has doubled."""

_STATE = "copy.json"
_FINISHED = (*(name for name in FILES if name != "occurrences.bin"), *(f"{column}.bin" for column in COLUMNS))
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
    checkpoint_every: float = 60,
    progress: Progress = ignore_progress,
) -> TokenizedCorpus:
    """The tokenized corpus of a text, made in `directory` or, if it is finished there already, opened.

    `directory` is a folder for this alone. No sentence has more than `longest` tokens (longer ones are cut into
    windows), and every token id is below `vocabulary`, the rows of the head. At most `max_sentences` distinct sentences
    are mined, in corpus order, with at most `max_tokens`; a sentence that does not fit whole ends the mined text.

    `validation` is a separate text for the questions on held-out prefixes; nothing is held out then. `render` makes the
    text of a chat. `made_with` holds what else decides the corpus, above all the tokenizer's fingerprint; a corpus
    with other entries is made anew. `checkpoint_every` is in seconds. `progress` counts bytes of the text.

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
        checkpoint_every=checkpoint_every,
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
    """Opens the corpus that `prepare` finished in `directory`, without writing."""
    stored = read_object(directory / _STATE)
    if not stored.get("finished") or stored.get("sizes") != _sizes(directory):
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
    checkpoint_every: float
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
        stored = self._usable_state()
        if stored.get("finished"):
            return TokenizedCorpus(directory, counts=stored["counts"], fingerprint=stored["fingerprint"])
        state = ReadState(**stored.get("position", {}))
        source.rows.bad.places = state.bad_rows
        reading = FirstPass(
            directory,
            state,
            encoder=self.encoder,
            longest=self.longest,
            vocabulary=self.vocabulary,
            listed=self.listed_documents,
        )
        with closing(reading):
            final, whole = self._read(reading)
        if final.sentences == 0:
            raise CorpusEmpty(f"{source.spec}: no usable sentence in {state.documents} documents; give another text")
        counts = {name: count for name, count in asdict(final).items() if name != "reached"}
        counts |= {name: getattr(state, name) for name in _READ_COUNTS}
        counts |= {"duplicates": state.occurrences - final.sentences, "read_whole": whole}
        if source.draw is not None:
            counts["documents_passed_over"] = state.passed_over
        if source.rows.bad.most:
            counts["bad_rows"] = source.rows.bad.document()
        mark = fingerprint(directory, final.sentences)
        sizes = _sizes(directory)
        # Later only sizes are checked, and a power cut could leave zeros of that size.
        for name in sizes:
            flush(directory / name)
        flush(directory)
        self._save(finished=True, counts=counts, fingerprint=mark, sizes=sizes)
        (directory / "occurrences.bin").unlink(missing_ok=True)
        return TokenizedCorpus(directory, counts=counts, fingerprint=mark)

    def _save(self, **state: Any) -> None:
        stored = json.dumps({"arguments": self.arguments, **state}, indent=1, sort_keys=True)
        write_bytes(self.directory / _STATE, stored.encode())

    def _read(self, reading: FirstPass) -> tuple[FinalizedCorpus, bool]:
        """Reads the rest of the source; returns the finalized corpus, and whether the source was read to its end."""
        source, state, limits, split = self.source, reading.state, self.limits, self.split
        capped = limits.sentences is not None or limits.tokens is not None
        state.look = max(state.look, FIRST_LOOK)
        while state.look < (limits.sentences or 0):
            state.look *= 2

        def final_if_enough() -> FinalizedCorpus | None:
            if not capped or state.found < state.look:
                return None
            # `look` moves after finalizing, so checks come at the same places however often the reading stops.
            self._save(position=reading.checkpoint())
            final = finalize(self.directory, state, limits=limits)
            while state.look <= state.found:
                state.look *= 2
            return final if final.reached else None

        if state.pieces == 0 and (final := final_if_enough()) is not None:
            return final, False
        skipped = state.pieces
        saved = shown = time.monotonic()
        pieces = source.pieces(state.documents, vocabulary=self.vocabulary, render=self.render)
        if split != "sentence":
            # These splits keep the text as it is, so a document is cut only when it is whole.
            whole = source.documents(state.documents, vocabulary=self.vocabulary, render=self.render)
            pieces = ((text, True) for text in whole)
        for piece, ends in pieces:
            reading.hash_piece(piece)
            if skipped:
                skipped -= 1
            else:
                reading.add(split_sentences(piece, split))
            if ends:
                reading.end_document()
                state.passed_over = source.meter.passed_over
                if (final := final_if_enough()) is not None:
                    return final, False
            now = time.monotonic()
            if now - shown >= PROGRESS_EVERY:
                self.progress("reading text", source.meter.done, source.size, "bytes")
                shown = now
            if now - saved >= self.checkpoint_every and not skipped:
                self._save(position=reading.checkpoint())
                saved = time.monotonic()
        state.passed_over = source.meter.passed_over
        self._save(position=reading.checkpoint())
        self.progress("reading text", source.meter.done, source.size, "bytes")
        return finalize(self.directory, state, limits=limits), True

    def _usable_state(self) -> dict[str, Any]:
        """The contents of `copy.json` if the folder's files can be used; else removes them and returns nothing."""
        directory = self.directory
        state = read_object(directory / _STATE)
        if state.get("arguments") == self.arguments:
            if state.get("finished"):
                if state["sizes"] == _sizes(directory):
                    (directory / "occurrences.bin").unlink(missing_ok=True)
                    return state
            elif "position" in state:
                there = _sizes(directory, FILES)
                if all(there[name] >= least for name, least in ReadState(**state["position"]).sizes().items()):
                    return state
        for name in (_STATE, *FILES, *_FINISHED, "repeats.bin", "repeats.bin.spill"):
            (directory / name).unlink(missing_ok=True)
        return {}


def _sizes(directory: Path, names: Iterable[str] = _FINISHED) -> dict[str, int]:
    paths = {name: directory / name for name in names}
    return {name: path.stat().st_size if path.is_file() else -1 for name, path in paths.items()}


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
