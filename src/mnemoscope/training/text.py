"""Documentation to token streams: the tokenizer, what is held out, and the windows of every step.

A document becomes the beginning token and then its sentences, each encoded alone and followed by a line feed, so a
sentence is tokenised in training exactly as it is when it is mined alone.

Held out (definitions.md section 3): documents whose hash falls under a threshold, less those that share a run of
`RUN` tokens with training text; these go back to training, until nothing moves.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mnemoscope.corpus.documentation import document_key, documents
from mnemoscope.corpus.held_out import document_hash, held_out_threshold
from mnemoscope.corpus.sentences import split_sentences
from mnemoscope.errors import TrainingError
from mnemoscope.training.recipe import BEGINNING, Recipe

RUN = 50
"""Tokens in a run that a held-out document may not share with training text."""

Tokens = NDArray[np.uint16]


@dataclass(frozen=True)
class Text:
    """One stream: `tokens [position]`, and the positions where `sentences` and `documents` start."""

    tokens: Tokens
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    text_bytes: int
    """Bytes of UTF-8 that the tokens after the beginning tokens stand for."""


@dataclass(frozen=True)
class Prepared:
    """What training reads: the two streams, the tokenizer, and the keys of the held-out documents."""

    training: Text
    held_out: Text
    tokenizer: Tokenizer
    held_out_keys: list[str]


def prepare_text(recipe: Recipe, directory: Path, *, say: Callable[[str], None], part: str = "all") -> Prepared:
    """The documentation on this machine as tokens; kept in `directory` and read from there the next time."""
    done = directory / "text.json"
    if not done.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        say("reading the documentation on this machine")
        found = list(documents(part))
        split = [_sentences(text) for text in found]
        hashes = np.array([document_hash(text) for text in found])
        threshold = held_out_threshold(hashes, np.array([len(s) for s in split]))
        candidates = hashes < threshold
        say(f"{len(found)} documents; training the tokenizer")
        tokenizer = train_tokenizer(
            (s for sentences, out in zip(split, candidates, strict=True) if not out for s in sentences),
            recipe.vocabulary,
        )
        streams = [_encode(tokenizer, sentences) for sentences in split]
        held = np.array(independent([s[0] for s in streams], candidates))
        say(f"{int(held.sum())} of {int(candidates.sum())} candidates are held out")
        tokenizer.save(str(directory / "tokenizer.json"))
        for name, chosen in (("training", ~held), ("held_out", held)):
            _save(directory / f"{name}.npz", [s for s, c in zip(streams, chosen, strict=True) if c])
        keys = sorted(document_key(text) for text, out in zip(found, held, strict=True) if out)
        facts = {"documents": len(found), "candidates": int(candidates.sum()), "held_out_keys": keys, "part": part}
        done.write_text(json.dumps({**facts, "vocabulary": tokenizer.get_vocab_size(), "threshold": int(threshold)}))
    facts = json.loads(done.read_text())
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    if tokenizer.get_vocab_size() > recipe.vocabulary or facts["part"] != part:
        raise TrainingError(f"{directory} holds text prepared for another recipe; choose another folder")
    texts = {name: _load(directory / f"{name}.npz") for name in ("training", "held_out")}
    if len(texts["training"].tokens) <= recipe.context:
        raise TrainingError("the documentation on this machine is too little to train on")
    return Prepared(texts["training"], texts["held_out"], tokenizer, facts["held_out_keys"])


def train_tokenizer(sentences: Iterator[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens whose token 0 is the beginning token."""
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


def independent(streams: Sequence[Tokens], candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which candidates share no run of `RUN` tokens with any document that is not held out in the end."""
    held = candidates.copy()
    runs = [_runs(stream) for stream in streams]
    fresh = np.unique(np.concatenate([r for r, out in zip(runs, held, strict=True) if not out] or [_runs(np.empty(0))]))
    while len(fresh):
        moved = [i for i in np.flatnonzero(held) if _any_in(runs[i], fresh)]
        held[moved] = False
        fresh = np.unique(np.concatenate([runs[i] for i in moved])) if moved else np.empty(0, np.uint64)
    return held


def windows(text: Text, recipe: Recipe, step: int) -> NDArray[np.int64]:
    """The windows `[batch, context + 1]` of one step; every epoch tiles the text anew, at another phase, shuffled."""
    length = recipe.context + 1
    each = max(1, (len(text.tokens) - 2 * length) // recipe.context)
    numbers = np.arange(step * recipe.batch, (step + 1) * recipe.batch)
    out = np.empty((recipe.batch, length), np.int64)
    for row, number in enumerate(numbers):
        epoch, place = divmod(int(number), each)
        phase, order = _epoch(recipe.seed, epoch, each, recipe.context)
        start = phase + int(order[place]) * recipe.context
        coin = np.random.default_rng((recipe.seed, 1, int(number))).random()
        if coin < recipe.sentence_windows:
            start = int(text.sentences[max(0, int(np.searchsorted(text.sentences, start, side="right")) - 1)])
            start = min(start, len(text.tokens) - recipe.context)
            out[row, 0] = 0
            out[row, 1:] = text.tokens[start : start + recipe.context]
        else:
            out[row] = text.tokens[start : start + length]
    return out


def read_alone(tokenizer: Tokenizer, recipe: Recipe) -> list[list[int]]:
    """The sentences of the demo's text that a model of this recipe can read whole, as tokens."""
    sentences = {s: None for text in documents("stdlib") for s in _sentences(text)}
    encodings = tokenizer.encode_batch(list(sentences), add_special_tokens=False)
    return [e.ids[: recipe.context - 1] for e in encodings if e.ids]


_EPOCHS: dict[tuple[int, int, int], tuple[int, NDArray[np.int64]]] = {}


def _epoch(seed: int, epoch: int, count: int, context: int) -> tuple[int, NDArray[np.int64]]:
    key = (seed, epoch, count)
    if key not in _EPOCHS:
        _EPOCHS.clear()
        generator = np.random.default_rng((seed, 0, epoch))
        _EPOCHS[key] = int(generator.integers(context)), generator.permutation(count)
    return _EPOCHS[key]


def _sentences(document: str) -> list[str]:
    return split_sentences(document, "sentence")


def _encode(tokenizer: Tokenizer, sentences: list[str]) -> tuple[Tokens, NDArray[np.int64], int]:
    tokens, starts = [0], []
    for encoding in tokenizer.encode_batch([f"{s}\n" for s in sentences], add_special_tokens=False):
        starts.append(len(tokens))
        tokens.extend(encoding.ids)
    return np.array(tokens, np.uint16), np.array(starts, np.int64), sum(len(s.encode()) + 1 for s in sentences)


def _runs(tokens: NDArray[np.generic]) -> NDArray[np.uint64]:
    """A 64-bit hash of every run of RUN tokens."""
    count = len(tokens) - RUN
    if count < 1:
        return np.empty(0, np.uint64)
    body = tokens[1:].astype(np.uint64)  # without the beginning token
    out = np.zeros(count, np.uint64)
    for i in range(RUN):
        out = out * np.uint64(0x9E3779B97F4A7C15) + body[i : i + count] + np.uint64(1)
        out ^= out >> np.uint64(29)
    return out


def _any_in(wanted: NDArray[np.uint64], ascending: NDArray[np.uint64]) -> bool:
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return bool((ascending[places] == wanted).any())


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
