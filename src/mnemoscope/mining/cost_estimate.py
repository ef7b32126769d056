"""Describes a model, and estimates the cost of mining a text with it.

A first sample is mined: batches that are sampled for the histogram and others are timed apart, because the plan has a
fixed number of the first kind. The text's size in tokens follows from the bytes read. The cost of the paper's questions
follows from the tokens through the model and the streams read as predictions, at speeds measured here.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mnemoscope.atlas.schema import OF_VALUES
from mnemoscope.corpus import prepare
from mnemoscope.corpus.tokenized.finalize import expected_share
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.mining.passes.vectors.neighbours import NeighbourPass
from mnemoscope.mining.passes.vectors.values import Targets, ValuePass
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.batch_reader import BatchReader
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import default_batch_tokens
from mnemoscope.runs.plan import (
    SAMPLED_EVERY,
    SAMPLED_TOKENS,
    default_removals,
    default_triggers,
    model_facts,
    removal_work,
)
from mnemoscope.runs.texts import encoder_of, open_text, spread_note

TEXT_SAMPLE_TOKENS = 150_000
"""Mined tokens of the sample from which the text's size is estimated."""
TIMED_SECONDS = 10.0
"""Time spent on batches of each kind, about."""
_READINGS = 2
"""Products with the head per prefix and layer: residual and update; twice as many for the few models whose streams
share none (models/readout/shared_readout.py).
"""
_ROLES, _ATTENTION = 1.0, 0.8
"""The seconds of roles and attention, of those of values and neighbours, and of predictions: measured on SmolLM2-135M
(docs/log).
"""
_PATTERNS = 250
"""Memories per second for finding patterns, on one core: of SmolLM2 500 before fields of meaning, which take as long as
the rest (docs/log).
"""


@dataclass(frozen=True)
class ExpectedText:
    mined_tokens: int
    mean_length: float
    held_out_sentences: int


@dataclass(frozen=True)
class Speeds:
    """Seconds per token in a batch with and without histogram, per stream read, and of the whole value pass."""

    sampled_token: float
    token: float
    reading: float
    values: float


@dataclass(frozen=True)
class Cost:
    """An estimate: tokens to be mined, seconds of each stage, bytes of the state."""

    mined_tokens: int
    exact: bool
    """Whether the number of tokens is exact, since the whole text was read."""
    tokens_per_second: float
    seconds: dict[str, float]
    state_bytes: int
    note: str | None = None
    """The warning when a token limit covers only the beginning of the text (`spread_note`)."""

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def describe(model: LanguageModel) -> dict[str, Any]:
    """The anatomy, sizes and proof of a model as plain values."""
    facts = model_facts(model)
    spec, sizes = facts.pop("spec"), facts.pop("sizes")
    experts = sizes.pop("experts", None) or [None] * sizes["layers"]
    kind = "encoder-decoder" if model.sources is not None else "decoder" if model.reading.causal else "encoder"
    ffn_share = sizes.pop("ffn_parameters") / max(1, sizes["parameters"])
    return {
        "model": spec,
        "kind": kind,
        "experts": 0,
        "shared_experts": 0,
        **facts,
        **sizes,
        "layer_experts": experts,
        "ffn_share": ffn_share,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "lies_on": list(model.lies_on),
        "unread_weights": len(model.unread),
    }


def estimate(
    model: LanguageModel,
    corpus: str | os.PathLike[str],
    options: MiningOptions,
    *,
    progress: Progress = ignore_progress,
) -> Cost:
    """The cost of mining this text; takes well under a minute for models that fit the machine."""
    most = options.max_tokens
    encoder, _, render = encoder_of(model, options)
    source = open_text(corpus, options).with_sample(options.sample, options.seed)
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        began = time.perf_counter()
        looked_at = TEXT_SAMPLE_TOKENS if most is None else min(most, TEXT_SAMPLE_TOKENS)
        copy = prepare(
            source,
            encoder,
            directory=Path(folder),
            longest=model.longest,
            split=options.cut,
            vocabulary=model.sizes.vocabulary,
            max_tokens=looked_at,
            render=render,
            progress=lambda _, done, total, unit: progress("reading a sample", done, total, unit),
        )
        reading = time.perf_counter() - began
        counts = copy.counts
        whole_read = bool(counts["read_whole"]) or not source.size
        # The ratio of the text to its sample, and whether it is exact.
        scale = 1.0 if whole_read else max(1.0, float(source.size or 0) / max(1, source.meter.done))
        exact = whole_read and counts["mined_sentences"] + counts["held_out_sentences"] == copy.sentences
        expected = partial(expected_text, counts, copy.sentences, scale=scale, exact=exact)
        text, whole = expected(most=most), expected(most=None)
        documents = counts["documents"] * scale
        loader = BatchLoader(copy, model, batch_tokens=default_batch_tokens(model), seed=0)
        often, rarely = _token_seconds(model, loader, progress)
    of_head = (0.0, 0.0) if model.keys_only else (_reading_seconds(model), _value_seconds(model, progress))
    seconds = {"text": reading * scale} | stage_seconds(text, Speeds(often, rarely, *of_head), model.sizes.memories)
    if model.keys_only:
        seconds = {stage: each for stage, each in seconds.items() if stage not in ("scales", *OF_VALUES)}
    shape = StateShape.of(model, keep=default_triggers(model))
    state = MiningState(shape, devices=[torch.device("meta")] * model.sizes.layers)
    size = sum(tensor.nbytes for tensor in state.tensors().values())
    share = text.mined_tokens / max(1, whole.mined_tokens)
    note = spread_note(round(documents * share), share, options.sample)
    return Cost(text.mined_tokens, exact, text.mined_tokens / max(seconds["mining"], 1e-9), seconds, size, note)


def expected_text(
    counts: Mapping[str, Any], sentences: int, *, scale: float, exact: bool, most: int | None
) -> ExpectedText:
    """The text that is `scale` times the sample of these counts; of an `exact` one these are its counts."""
    if counts["read_whole"]:
        share = counts["held_out_sentences"] / max(1, sentences)
    else:
        share = expected_share(sentences * scale)
    tokens = int(counts["mined_tokens"]) if exact else round(int(counts["tokens"]) * scale * (1 - share))
    return ExpectedText(
        tokens if most is None else min(tokens, most),
        int(counts["tokens"]) / max(1, sentences),
        round(sentences * scale * share),
    )


def stage_seconds(text: ExpectedText, speeds: Speeds, memories: Sequence[int]) -> dict[str, float]:
    """The seconds of every stage but reading the text; `memories` are those of each layer."""
    tokens, mean, layers = text.mined_tokens, text.mean_length, len(memories)
    sampled = min(tokens, SAMPLED_TOKENS)
    mixed = speeds.token + (speeds.sampled_token - speeds.token) / SAMPLED_EVERY
    removals = default_removals(mined_tokens=tokens, mined_sentences=round(tokens / max(1.0, mean)), layers=layers)
    removed = removal_work(removals, mean_length=mean, layers=layers)
    prefixes, prefix = min(MiningOptions.prefixes, text.held_out_sentences), speeds.token * (mean / 2 + 1)
    predictions = prefixes * (prefix + _READINGS * layers * speeds.reading)
    return {
        "mining": speeds.sampled_token * sampled + mixed * (tokens - sampled),
        "scales": prefixes * prefix,
        "values": speeds.values,
        "roles": _ROLES * speeds.values,
        # No sentence loses the same token twice, so a small text is soon through.
        "removals": min(speeds.token * removed, tokens * prefix),
        "predictions": predictions,
        "attention": _ATTENTION * predictions,
        "patterns": sum(memories) / _PATTERNS,
    }


def _token_seconds(model: LanguageModel, loader: BatchLoader, progress: Progress) -> tuple[float, float]:
    """Seconds per token of batches with histogram and without, after a few warm-up batches."""
    reader = BatchReader(model, MiningState(StateShape.of(model, keep=default_triggers(model)), devices=model.devices))
    spent, read = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for number in range(4 * loader.count):
        batch = replace(loader(number % loader.count), sampled=number % 2 == 0)
        began = time.perf_counter()
        reader.read(batch)
        if number >= min(4, loader.count):
            spent[batch.sampled] += time.perf_counter() - began
            read[batch.sampled] += batch.tokens
        progress("timing", min(sum(spent.values()), 2 * TIMED_SECONDS), 2 * TIMED_SECONDS, "seconds")
        if min(spent.values()) >= TIMED_SECONDS or (number >= loader.count and min(read.values()) > 0):
            break
    return spent[True] / max(1, read[True]), spent[False] / max(1, read[False])


def _reading_seconds(model: LanguageModel) -> float:
    streams = torch.ones(128, model.sizes.hidden, device=model.device, dtype=model.dtype)
    model.scores(streams, projection="lens")
    began = time.perf_counter()
    model.scores(streams, projection="lens").amax().item()
    return (time.perf_counter() - began) / len(streams)


def _value_seconds(model: LanguageModel, progress: Progress) -> float:
    progress("timing values", 0, None, "")
    memories = model.sizes.memories[0]
    wanted = Targets(*(np.zeros(n, np.int64) for n in (memories, memories, 0, 0)))
    began = time.perf_counter()
    ValuePass(model).columns(0, wanted, np.ones((2, memories)))
    NeighbourPass(model, range(model.sizes.layers), most=MiningOptions.neighbours).columns(0)
    return (time.perf_counter() - began) * sum(model.sizes.memories) / memories
