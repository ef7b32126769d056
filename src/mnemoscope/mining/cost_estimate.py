"""What a model is, and what mining a text with it will cost, without mining it.

The estimate mines a first sample for real: batches that are sampled for the histogram and batches that are not are
timed apart, because the plan has a fixed number of the first kind. The text's size in tokens is taken in proportion to
the bytes read. What the questions of the paper need beside it is reckoned from the tokens that go through the model and
the streams that are read as predictions, at the speeds measured here.
"""

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from mnemoscope.corpus import open_source, prepare
from mnemoscope.mining.batch_loader import BatchLoader
from mnemoscope.mining.batch_reader import BatchReader
from mnemoscope.mining.plan import SAMPLED_EVERY, SAMPLED_TOKENS, default_batch_tokens, default_triggers
from mnemoscope.mining.removals import default_removals, removal_work
from mnemoscope.mining.run_folder import encoder_of
from mnemoscope.mining.sealing import model_facts
from mnemoscope.mining.state import MiningState, StateShape
from mnemoscope.mining.values import Targets, neighbour_table, value_table, working_columns
from mnemoscope.mining_options import MiningOptions, check_fields
from mnemoscope.models import LanguageModel
from mnemoscope.progress import Progress, ignore_progress

_SAMPLE_TOKENS = 150_000
"""Mined tokens of the sample that the text's size is judged by."""
_SECONDS = 10.0
"""Time spent on batches of each kind, about."""
_READINGS = 4
"""Streams that a prefix has read as predictions in each layer: residual, output, and the update twice."""
_PATTERNS = 700
"""Memories per second that patterns are found for, on one core of 2025 (LOG.md)."""


@dataclass(frozen=True)
class Cost:
    """An estimate: tokens to be mined, seconds of each stage, bytes of memory for the state."""

    mined_tokens: int
    exact: bool
    """Whether the whole text was settled, so that the number of tokens is no estimate."""
    tokens_per_second: float
    seconds: dict[str, float]
    state_bytes: int

    @property
    def total_seconds(self) -> float:
        """All stages together."""
        return sum(self.seconds.values())


def describe(model: LanguageModel) -> dict[str, Any]:
    """The anatomy, sizes and proof of a model as plain values."""
    facts = model_facts(model)
    spec, sizes = facts.pop("spec"), facts.pop("sizes")
    experts = sizes.pop("experts", None) or [None] * sizes["layers"]
    ffn_share = sizes.pop("ffn_parameters") / max(1, sizes["parameters"])
    return {
        "model": spec,
        "kind": "decoder",
        "experts": 0,
        "shared_experts": 0,
        **facts,
        **sizes,
        "layer_experts": experts,
        "ffn_share": ffn_share,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "lies_on": list(model.lies_on),
    }


def estimate(
    model: LanguageModel,
    corpus: str | os.PathLike[str],
    *,
    split: str = "sentence",
    text_field: str = "text",
    ids_field: str | None = None,
    max_tokens: int | None = None,
    progress: Progress = ignore_progress,
) -> Cost:
    """What `mine` will cost for this text; takes well under a minute for models that fit the machine."""
    check_fields(text_field, ids_field)
    encoder, _ = encoder_of(model, ids=ids_field is not None)
    split = split if ids_field is None else "document"
    source = open_source(os.fspath(corpus), text_field=text_field, ids_field=ids_field, split=split)
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        began = time.perf_counter()
        sample = _SAMPLE_TOKENS if max_tokens is None else min(max_tokens, _SAMPLE_TOKENS)
        copy = prepare(
            source, encoder, directory=Path(folder), longest=model.longest, split=split,
            vocabulary=model.sizes.vocabulary, max_tokens=sample,
            progress=lambda _, done, total, unit: progress("reading a sample", done, total, unit),
        )  # fmt: skip
        reading = time.perf_counter() - began
        whole = bool(copy.counts["read_whole"]) or not source.size
        scale = 1.0 if whole else max(1.0, float(source.size or 0) / max(1, source.meter.done))
        exact = whole and copy.counts["mined_sentences"] + copy.counts["held_out_sentences"] == copy.sentences
        found = int(copy.counts["tokens"]) * scale * (1 - _held_out_share(copy.counts))
        tokens = int(copy.counts["mined_tokens"]) if exact else round(found)
        if max_tokens is not None:
            tokens = min(tokens, max_tokens)
        loader = BatchLoader(copy, model, batch_tokens=default_batch_tokens(model), seed=0)
        often, rarely = _token_seconds(model, loader, progress)
    sampled = min(tokens, SAMPLED_TOKENS)
    mixed = rarely + (often - rarely) / SAMPLED_EVERY
    mining = often * sampled + mixed * (tokens - sampled)
    mean = int(copy.counts["tokens"]) / max(1, copy.sentences)
    removals = default_removals(
        mined_tokens=tokens, mined_sentences=round(tokens / max(1.0, mean)), layers=model.sizes.layers
    )
    prefixes = min(MiningOptions.prefixes, round(copy.sentences * scale * _held_out_share(copy.counts)))
    removed = removal_work(removals, mean_length=mean, layers=model.sizes.layers)
    each = rarely * (mean / 2 + 1) + _READINGS * model.sizes.layers * _reading_seconds(model)
    # No sentence loses the same token twice, so a small text is soon through.
    seconds = {
        "text": reading * scale,
        "mining": mining,
        "values": _value_seconds(model, progress),
        "removals": rarely * min(removed, tokens * (mean / 2 + 1)),
        "predictions": prefixes * each,
        "patterns": sum(model.sizes.memories) / _PATTERNS,
    }
    each = len(model.signs) * default_triggers(model) * (20 if model.numberings else 16) + 36 * 8 + 80
    state = sum(model.sizes.memories) * each
    return Cost(tokens, exact, tokens / max(mining, 1e-9), seconds, state)


def _held_out_share(counts: dict[str, Any]) -> float:
    """The share of the text that will be held out: 2 % of a large text, what was held out of a small one."""
    if counts["read_whole"]:
        return float(counts["held_out_sentences"] / max(1, counts["sentences"]))
    return 0.02


def _token_seconds(model: LanguageModel, loader: BatchLoader, progress: Progress) -> tuple[float, float]:
    """Seconds per token of batches with histogram and of batches without, after a few that are not timed."""
    reader = BatchReader(model, MiningState(StateShape.of(model, keep=default_triggers(model)), devices=model.devices))
    spent, read = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for number in range(4 * loader.count):
        batch = replace(loader(number % loader.count), sampled=number % 2 == 0)
        began = time.perf_counter()
        reader.read(batch)
        reader.count()
        if number >= min(4, loader.count):
            spent[batch.sampled] += time.perf_counter() - began
            read[batch.sampled] += batch.tokens
        progress("timing", min(sum(spent.values()), 2 * _SECONDS), 2 * _SECONDS, "seconds")
        if min(spent.values()) >= _SECONDS or (number >= loader.count and min(read.values()) > 0):
            break
    return spent[True] / max(1, read[True]), spent[False] / max(1, read[False])


def _reading_seconds(model: LanguageModel) -> float:
    """Seconds that one stream takes to be read as a prediction."""
    streams = torch.ones(128, model.sizes.hidden, device=model.device, dtype=model.dtype)
    model.scores(streams, projection="lens")
    began = time.perf_counter()
    model.scores(streams, projection="lens").amax().item()
    return (time.perf_counter() - began) / len(streams)


def _value_seconds(model: LanguageModel, progress: Progress) -> float:
    """Seconds of the value pass, from its first layer."""
    progress("timing values", 0, None, "")
    memories = model.sizes.memories[0]
    wanted = Targets(*(np.zeros(n, np.int64) for n in (memories, 0, 0)))
    began = time.perf_counter()
    value_table(model, 0, wanted)
    firing = {"memory": np.arange(memories), "sign": np.ones(memories, np.int8), "coefficient": np.ones(memories)}
    working_columns(model, 0, pl.DataFrame(firing), scale=1.0)
    neighbour_table(model, 0, range(model.sizes.layers), most=MiningOptions.neighbours)
    return (time.perf_counter() - began) * sum(model.sizes.memories) / memories
