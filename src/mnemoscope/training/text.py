"""Turns documents into token streams: the tokenizer, what is held out, and the windows of every step.

A document is the beginning token and its sentences, each encoded alone and followed by a line feed, so a sentence has
the same tokens in training and in mining.

Held out (definitions.md section 3): documents whose hash is below a threshold, without those that share a run of tokens
with training text.

Planted (ground truth of `mnemoscope audit`; Carlini et al. 2019, The Secret Sharer): strings, each repeated as often as
its group. A repetition is a sentence at a random position of a document that cannot be held out.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mnemoscope.corpus import Source, document_hash, open_source
from mnemoscope.corpus.sources.pydocs import document_key, documents
from mnemoscope.corpus.sources.secrets import read_secrets
from mnemoscope.corpus.sources.sentences import split_sentences
from mnemoscope.corpus.tokenized.finalize import held_out_threshold
from mnemoscope.errors import OptionError, TrainingError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.training.recipe import BEGINNING, Recipe

SAMPLE_BYTES = 40_000_000
"""Approximate size of the random sample that the tokenizer is trained on."""
RUN = 50
"""Tokens of a run that no held-out document shares with training text."""

Tokens = NDArray[np.uint16]
Plants = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TextSource:
    corpora: tuple[str, ...] = ()
    """Specifications for `open_source`, read in order; the documentation on this machine if empty."""
    validation: str | None = None
    """A text on which only the loss is measured."""
    max_bytes: int | None = None
    """Of `corpora`: reading stops before the document that would exceed it, but not before the first."""
    text_field: str = "text"
    split: str = "sentence"
    """The unit of a sentence, and if `line`, of a document."""
    plants: Plants = ()

    def open(self, spec: str) -> Source:
        return open_source(spec, text_field=self.text_field, split=self.split)


@dataclass(frozen=True)
class Text:
    """`sentences` and `documents` are the positions in `tokens` where they start."""

    tokens: Tokens
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    text_bytes: int


@dataclass(frozen=True)
class TrainingData:
    training: Text
    held_out: Text
    tokenizer: Tokenizer
    held_out_keys: list[str]
    wanted: TextSource = TextSource()
    validation: Text | None = None

    @cached_property
    def between_sentences(self) -> list[int]:
        """The beginning token and the line feed."""
        return [0, *self.tokenizer.encode("\n", add_special_tokens=False).ids]


def prepare_text(
    recipe: Recipe, directory: Path, *, say: Callable[[str], None], wanted: TextSource | None = None
) -> TrainingData:
    """The text as tokens, stored in `directory`."""
    wanted = wanted or TextSource()
    record = directory / "text.json"
    if not record.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        facts = _prepare(recipe, directory, wanted, say)
        write_bytes(record, json.dumps({**facts, "wanted": asdict(wanted)}).encode())
    try:
        facts = json.loads(record.read_bytes())
        begun, count, keys = facts["wanted"], int(facts["documents"]), list(facts["held_out_keys"])
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        names = ("training", "held_out") if begun["validation"] is None else ("training", "held_out", "validation")
        texts = {name: _load(directory / f"{name}.npz") for name in names}
    except Exception as error:  # any damage has the same remedy
        raise TrainingError(f"{directory} holds no text prepared for training; choose another folder") from error
    if tokenizer.get_vocab_size() > recipe.vocabulary or begun != json.loads(json.dumps(asdict(wanted))):
        raise TrainingError(f"{directory} holds text prepared for another recipe; choose another folder")
    if len(texts["training"].tokens) <= recipe.context:
        where = ", ".join(wanted.corpora) or "the documentation on this machine"
        raise TrainingError(
            f"{where} is too little to train on: {len(texts['training'].tokens)} tokens; give more text"
        )
    if not len(texts["held_out"].documents):
        raise TrainingError(
            f"none of the {count} documents of {', '.join(wanted.corpora)} is held out, so nothing could"
            " be measured; give a text of more documents (a blank line ends one), or --split line"
        )
    return TrainingData(**texts, tokenizer=tokenizer, held_out_keys=keys, wanted=wanted)


def check_folder(directory: Path) -> None:
    """Raises TrainingError for a folder that holds something else than a training run."""
    if directory.exists() and not directory.is_dir():
        raise TrainingError(f"{directory} is a file; choose a folder")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / "text").is_dir():
        raise TrainingError(f"{directory} holds something that is not a training run; choose another folder")


def _prepare(recipe: Recipe, directory: Path, source: TextSource, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"reading {', '.join(source.corpora) or 'the documentation on this machine'}")
    split, sizes, classes, keys = [], [], [], []
    for text in _documents(source):
        if sentences := split_sentences(text, source.split):
            split.append(sentences)
            sizes.append(len(text.encode()))
            classes.append(document_hash(text))
            keys.append(document_key(text))
    if not split:
        raise TrainingError(f"{', '.join(source.corpora) or 'the documentation'} has no sentence to train on")
    hashes = np.array(classes)
    candidates = hashes < held_out_threshold(hashes, np.array([len(s) for s in split]))
    plant(split, source.plants, usable=np.flatnonzero(~candidates).tolist(), seed=recipe.seed)
    say(f"{len(split)} documents; training the tokenizer")
    sampled = ~candidates & (np.random.default_rng(0).random(len(split)) < SAMPLE_BYTES / sum(sizes))
    tokenizer = train_tokenizer(
        (s for sentences, taken in zip(split, sampled, strict=True) if taken for s in sentences), recipe.vocabulary
    )
    streams = []
    for number, sentences in enumerate(split):
        streams.append(_encode(tokenizer, sentences))
        split[number] = []
    held = independent_candidates([s[0] for s in streams], candidates)
    say(f"{int(held.sum())} of {int(candidates.sum())} candidates are held out")
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, chosen in (("training", ~held), ("held_out", held)):
        _save(directory / f"{name}.npz", [s for s, c in zip(streams, chosen, strict=True) if c])
    if source.validation is not None:
        validation = (split_sentences(text, source.split) for text in source.open(source.validation).documents())
        _save(directory / "validation.npz", [_encode(tokenizer, sentences) for sentences in validation if sentences])
    return {
        "documents": len(streams),
        "held_out_keys": sorted(key for key, out in zip(keys, held, strict=True) if out),
    }


def plan_plants(path: Path, *, times: Sequence[int], seed: int) -> Plants:
    """Divides the strings of a file at random into equal groups, one per number in `times`."""
    if not times or min(times) < 1 or len(set(times)) < len(times):
        raise OptionError(f"--plant-times {','.join(map(str, times))} is impossible; give different numbers from 1 on")
    texts = read_secrets(path).texts
    groups = np.random.default_rng((seed, 5)).permutation(len(texts)) % len(times)
    return tuple((text, int(times[group])) for text, group in zip(texts, groups.tolist(), strict=True))


def parse_times(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) for part in parts):
        raise OptionError(f"--plant-times {text!r} is not a list of numbers; write one as 1,4,16,64")
    return tuple(map(int, parts))


def plant(documents: list[list[str]], plants: Plants, *, usable: Sequence[int], seed: int) -> None:
    """Inserts each repetition at a random place in a random document of `usable`."""
    if plants and not len(usable):
        raise TrainingError("no document is left to plant strings into; give a text of more documents")
    generator = np.random.default_rng((seed, 6))
    for text, times in plants:
        for number in generator.choice(np.asarray(usable), times).tolist():
            sentences = documents[number]
            sentences.insert(int(generator.integers(len(sentences) + 1)), text)


def independent_candidates(streams: Sequence[Tokens], candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The candidates that share no run of `RUN` tokens with training text, to which the others return."""
    held = candidates.copy()
    runs = {i: _hash_runs(streams[i]) for i in map(int, np.flatnonzero(candidates))}
    known = np.unique(np.concatenate([*runs.values(), np.empty(0, np.uint64)]))
    if not len(known):
        return held
    places = {i: np.searchsorted(known, own) for i, own in runs.items()}
    taken = np.zeros(len(known), bool)  # which runs occur in training text
    for i in map(int, np.flatnonzero(~candidates)):
        own = _hash_runs(streams[i])
        index = np.minimum(np.searchsorted(known, own), len(known) - 1)
        taken[index[known[index] == own]] = True
    while moved := [k for k in places if held[k] and taken[places[k]].any()]:
        for k in moved:
            held[k] = False
            taken[places[k]] = True
    return held


def _hash_runs(tokens: NDArray[np.generic]) -> NDArray[np.uint64]:
    count = len(tokens) - RUN
    if count < 1:
        return np.empty(0, np.uint64)
    body = tokens[1:].astype(np.uint64)  # without the beginning token
    out = np.zeros(count, np.uint64)
    for i in range(RUN):
        out = out * np.uint64(0x9E3779B97F4A7C15) + body[i : i + count] + np.uint64(1)
        out ^= out >> np.uint64(29)
    return out


def _documents(wanted: TextSource) -> Iterator[str]:
    if not wanted.corpora:
        yield from documents()
        return
    read = 0
    # All are opened before any is read, so that a wrong name fails at once.
    for source in [wanted.open(spec) for spec in wanted.corpora]:
        for text in source.documents():
            before, read = read, read + len(text.encode())
            if wanted.max_bytes is not None and before and read > wanted.max_bytes:
                return
            yield text


def train_tokenizer(sentences: Iterator[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE of at most `vocabulary` tokens; token 0 is the beginning token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGINNING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def windows(text: Text, recipe: Recipe, step: int) -> NDArray[np.int64]:
    """Windows `[batch, context + 1]`; every epoch divides the text at another offset, and shuffles."""
    length = recipe.context + 1
    each = max(1, (len(text.tokens) - 2 * length) // recipe.context)
    rows = []
    for number in range(step * recipe.batch, (step + 1) * recipe.batch):
        epoch, place = divmod(number, each)
        phase, order = _epoch(recipe.seed, epoch, each, recipe.context)
        start = phase + int(order[place]) * recipe.context
        if np.random.default_rng((recipe.seed, 1, number)).random() < recipe.sentence_windows:
            start = int(text.sentences[max(0, int(np.searchsorted(text.sentences, start, side="right")) - 1)])
            start = min(start, len(text.tokens) - recipe.context)
            rows.append(np.append(0, text.tokens[start : start + recipe.context]))
        else:
            rows.append(text.tokens[start : start + length])
    return np.stack(rows).astype(np.int64)


@lru_cache(maxsize=1)
def _epoch(seed: int, epoch: int, count: int, context: int) -> tuple[int, NDArray[np.int64]]:
    generator = np.random.default_rng((seed, 0, epoch))
    return int(generator.integers(context)), generator.permutation(count)


def _encode(tokenizer: Tokenizer, sentences: list[str]) -> tuple[Tokens, NDArray[np.int64], int]:
    tokens, starts = [0], []
    for encoding in tokenizer.encode_batch([f"{s}\n" for s in sentences], add_special_tokens=False):
        starts.append(len(tokens))
        tokens.extend(encoding.ids)
    return np.array(tokens, np.uint16), np.array(starts, np.int64), sum(len(s.encode()) + 1 for s in sentences)


def _save(path: Path, streams: list[tuple[Tokens, NDArray[np.int64], int]]) -> None:
    lengths = np.array([len(s[0]) for s in streams], np.int64)
    begins = np.cumsum(lengths) - lengths
    empty = np.empty(0, np.int64)
    np.savez(
        path,
        tokens=np.concatenate([s[0] for s in streams] or [empty.astype(np.uint16)]),
        sentences=np.concatenate([s[1] + b for s, b in zip(streams, begins, strict=True)] or [empty]),
        documents=begins,
        text_bytes=np.int64(sum(s[2] for s in streams)),
    )


def _load(path: Path) -> Text:
    with np.load(path) as arrays:
        return Text(arrays["tokens"], arrays["sentences"], arrays["documents"], int(arrays["text_bytes"]))
