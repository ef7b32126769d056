"""From a source to a working copy: read once, settle, finish; interrupted anywhere, it goes on from a checkpoint.

`copy.json` in the folder says which arguments the copy is made with, how far the reading is, and, written last, that it
is finished. A folder made with other arguments, or from a file that has changed since, is emptied of this room's
own files and made anew.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from mnemoscope.corpus.disk import read_json, storing, sync_file, sync_folder, write_json
from mnemoscope.corpus.duplicates import count_repeats
from mnemoscope.corpus.first_pass import FILES, Encoder, FirstPass, Position
from mnemoscope.corpus.sentences import check_split, split_sentences
from mnemoscope.corpus.settling import Rule, Settled, fingerprint, settle
from mnemoscope.corpus.sources import Source
from mnemoscope.corpus.streams import LONGEST, too_long
from mnemoscope.corpus.working_copy import COLUMNS, WorkingCopy
from mnemoscope.errors import CorpusEmpty, OptionError
from mnemoscope.progress import Progress

FORMAT: Final = 2
FIRST_LOOK: Final = 65_536
"""With a cap, duplicates are settled after so many sentences and again whenever their number has doubled."""

_STATE: Final = "copy.json"
_PROBE: Final = ["The quick brown fox.", "  def f(x):\n    return 3.14", "caf\u00e9 \u65e5\u672c \U0001f600 <s> </s>"]
_PROGRESS_EVERY: Final = 0.2


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
    made_with: Mapping[str, str] | None = None,
    checkpoint_every: float = 60,
    progress: Progress | None = None,
) -> WorkingCopy:
    """Return the working copy of a text, made in `directory` or, if it is finished there already, opened.

    Args:
        source: the text.
        encoder: the tokenizer.
        directory: a folder for this alone.
        longest: tokens that a sentence may have; a longer one is cut into windows.
        split: `sentence`, `line` or `document`.
        vocabulary: rows of the head; no token id may reach it.
        max_sentences: distinct sentences to be mined at most, in corpus order.
        max_tokens: their tokens at most; a sentence that does not fit whole ends the mined text.
        validation: a text of its own for the questions on held-out prefixes; nothing is held out then.
        made_with: what else decides the copy, such as the tokenizer's fingerprint; a copy made with other entries is
            made anew.
        checkpoint_every: seconds between checkpoints.
        progress: told how many bytes of the text were read.

    Raises:
        OptionError: an impossible argument.
        CorpusNotFound, CorpusUnreadable: the source cannot be read.
        CorpusEmpty: no usable sentence.
        ModelDamaged: a token id beyond the head's rows.
        StoreFailed: no room in `directory`.
    """
    check_split(split)
    for name, value in (("longest", longest), ("max sentences", max_sentences), ("max tokens", max_tokens)):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}; it must be at least 1")
    with storing(directory):
        second = None
        if validation is not None:
            second = _prepare(
                validation, encoder, directory / "validation", longest=longest, split=split, vocabulary=vocabulary,
                rule=Rule("nothing", None, None), made_with=made_with or {}, checkpoint_every=checkpoint_every,
                progress=progress,
            )  # fmt: skip
        held_out = "nothing" if validation is not None else "hash" if source.held_out is None else "list"
        rule = Rule(held_out, max_sentences, max_tokens)
        copy = _prepare(
            source, encoder, directory, longest=longest, split=split, vocabulary=vocabulary,
            rule=rule, made_with=made_with or {}, checkpoint_every=checkpoint_every, progress=progress,
        )  # fmt: skip
        if second is None:
            return copy
        counts = copy.counts | {"validation": second.counts | {"overlap_sentences": _overlap(copy, second)}}
        return WorkingCopy(directory, counts=counts, fingerprint=copy.fingerprint, second=second)


def _prepare(
    source: Source,
    encoder: Encoder,
    directory: Path,
    *,
    longest: int,
    split: str,
    vocabulary: int,
    rule: Rule,
    made_with: Mapping[str, str],
    checkpoint_every: float,
    progress: Progress | None,
) -> WorkingCopy:
    directory.mkdir(parents=True, exist_ok=True)
    listed = source.held_out if rule.held_out == "list" else None
    arguments: dict[str, Any] = {
        "format": FORMAT,
        "source": source.identity,
        "listed": None if listed is None else _digest(sorted(listed)),
        "encoder": _digest([list(map(int, ids)) for ids in encoder.encode(list(_PROBE))]),
        "made_with": dict(made_with),
        "longest": longest,
        "split": split,
        "vocabulary": vocabulary,
        "rule": asdict(rule),
    }
    # Through JSON and back, so that what is compared is what is stored.
    arguments = json.loads(json.dumps(arguments))
    state = _usable_state(directory, arguments)
    if state.get("finished"):
        return WorkingCopy(directory, counts=state["counts"], fingerprint=state["fingerprint"])
    position = Position.read(state["position"]) if "position" in state else Position()

    def store(reached: dict[str, Any]) -> None:
        write_json(directory / _STATE, {"arguments": arguments, "position": reached})

    reading = FirstPass(directory, position, encoder=encoder, longest=longest, vocabulary=vocabulary, listed=listed)
    with closing(reading):
        settled, whole = _read(
            source, reading, directory=directory, split=split, rule=rule,
            checkpoint_every=checkpoint_every, progress=progress, store=store,
        )  # fmt: skip
    if settled.sentences == 0:
        raise CorpusEmpty(f"{source.spec}: no usable sentence in {position.documents} documents; give another text")
    if settled.mined_sentences == 0:
        raise CorpusEmpty(f"{source.spec}: all {settled.sentences} sentences are held out; give more text")
    counts = _counts(position, settled, whole=whole)
    mark = fingerprint(directory, settled.sentences)
    sizes = _sizes(directory)
    # What is believed later is the size alone, and a power cut leaves zeros of that size.
    for name in (name for name, size in sizes.items() if size >= 0):
        sync_file(directory / name)
    sync_folder(directory)
    finished = {"arguments": arguments, "finished": True, "counts": counts, "fingerprint": mark}
    write_json(directory / _STATE, finished | {"sizes": sizes})
    (directory / "occurrences.bin").unlink(missing_ok=True)
    return WorkingCopy(directory, counts=counts, fingerprint=mark)


def _read(
    source: Source,
    reading: FirstPass,
    *,
    directory: Path,
    split: str,
    rule: Rule,
    checkpoint_every: float,
    progress: Progress | None,
    store: Callable[[dict[str, Any]], None],
) -> tuple[Settled, bool]:
    """Read the source from the position on; return what settling gives and whether the source was read to its end."""
    position = reading.position
    capped = rule.max_sentences is not None or rule.max_tokens is not None
    position.look = max(position.look, FIRST_LOOK)
    while position.look < (rule.max_sentences or 0):
        position.look *= 2

    def enough() -> Settled | None:
        """Return what settling gives where a document ends and the caps are reached."""
        if not capped or position.found < position.look:
            return None
        # Looks are at the same places however often the reading was interrupted: `look` moves on after settling.
        reading.checkpoint(store)
        settled = settle(directory, position, rule=rule)
        while position.look <= position.found:
            position.look *= 2
        return settled if settled.reached else None

    if position.pieces == 0 and (settled := enough()) is not None:
        return settled, False
    skipped = position.pieces
    saved = shown = time.monotonic()
    whole_text: list[str] = []
    size = 0
    for piece, ends in source.pieces(position.documents):
        reading.hash_piece(piece)
        if skipped:
            skipped -= 1
        elif split == "sentence":
            reading.add(split_sentences(piece, split))
        else:
            # These keep the text as it stands, so a document is cut only when it is whole.
            whole_text.append(piece)
            size += len(piece)
            if size > LONGEST:
                raise too_long(f"{source.spec}: document {position.documents}")
            if ends:
                reading.add(split_sentences("".join(whole_text), split))
                whole_text, size = [], 0
        if ends:
            reading.end_document()
            if (settled := enough()) is not None:
                return settled, False
        now = time.monotonic()
        if progress is not None and now - shown >= _PROGRESS_EVERY:
            progress("reading text", source.meter.done, source.size, "bytes")
            shown = now
        if now - saved >= checkpoint_every and not (whole_text or skipped):
            reading.checkpoint(store)
            saved = time.monotonic()
    reading.checkpoint(store)
    if progress is not None:
        progress("reading text", source.meter.done, source.size, "bytes")
    return settle(directory, position, rule=rule), True


def _usable_state(directory: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what `copy.json` says if the folder's files can be used; else remove them and return nothing."""
    state = read_json(directory / _STATE) or {}
    if state.get("arguments") == arguments:
        if state.get("finished"):
            if state["sizes"] == _sizes(directory):
                (directory / "occurrences.bin").unlink(missing_ok=True)
                return state
        elif "position" in state:
            sizes = Position.read(state["position"]).sizes()
            if all((directory / name).is_file() and (directory / name).stat().st_size >= sizes[name] for name in FILES):
                return state
    (directory / _STATE).unlink(missing_ok=True)
    for name in (*FILES, *(f"{column}.bin" for column in COLUMNS), "repeats.bin", "repeats.bin.spill"):
        (directory / name).unlink(missing_ok=True)
    return {}


def _sizes(directory: Path) -> dict[str, int]:
    names = [*(name for name in FILES if name != "occurrences.bin"), *(f"{column}.bin" for column in COLUMNS)]
    paths = {name: directory / name for name in names}
    return {name: path.stat().st_size if path.is_file() else -1 for name, path in paths.items()}


def _counts(position: Position, settled: Settled, *, whole: bool) -> dict[str, Any]:
    return {
        "documents": position.documents,
        "sentences": settled.sentences,
        "duplicates": position.occurrences - settled.sentences,
        "windows": position.windows,
        "without_tokens": position.without_tokens,
        "tokens": position.tokens,
        "text_bytes": position.text_bytes,
        "mined_sentences": settled.mined_sentences,
        "mined_tokens": settled.mined_tokens,
        "held_out_documents": settled.held_out_documents,
        "held_out_sentences": settled.held_out_sentences,
        "held_out_threshold": settled.threshold,
        "read_whole": whole,
    }


def _overlap(copy: WorkingCopy, second: WorkingCopy) -> int:
    """Return how many distinct sentences of the validation text are mined, too."""
    mined = len(copy.mined)

    def read(start: int, stop: int) -> Any:
        first = copy.hashes(copy.mined[start : min(stop, mined)])
        rest = second.hashes(np.arange(max(start, mined) - mined, max(stop, mined) - mined))
        return np.concatenate((first, rest))

    repeats = count_repeats(read, mined + second.sentences, directory=copy.directory, name="overlap.bin")
    found = int((repeats.array[mined:] == 0).sum())
    (copy.directory / "overlap.bin").unlink()
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
