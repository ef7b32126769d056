"""Measures a model, or GPT-2's shape, on the standard library's documentation, and the value pass."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.corpus import TokenizedCorpus, open_source, prepare
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining.passes.vectors.neighbours import NeighbourPass
from mnemoscope.mining.passes.vectors.projector import Projector
from mnemoscope.mining.passes.vectors.values import Targets, ValuePass
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.batches import default_batch_tokens
from mnemoscope.models.modules.projections import LinearHead

from .loops import Stopwatch, compare_loops, mine_batches, overlap
from .shapes import random_model

TEXT = "builtin:pydocs:stdlib"
_COMPARED = 4
"""Batches mined in bfloat16, which a processor without its instructions takes minutes for."""
_ROUNDS = 5
"""Timed rounds of the bare product and of the pass."""


def measure_text(name: str, *, device: torch.device, dtype: str, rounds: int, warm: int) -> dict[str, Any]:
    """All figures of one model, as in named_model; in float32 also the gain and the changes of bfloat16."""
    model = named_model(name, dtype, device)
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        copy = prepare(
            open_source(TEXT),
            model,
            directory=Path(folder),
            longest=model.longest,
            split="sentence",
            vocabulary=model.sizes.vocabulary,
        )
        batch_tokens = default_batch_tokens(model)
        loader = BatchLoader(copy, model, batch_tokens=batch_tokens, seed=0)
        rates = compare_loops(model, loader, in_text_order(copy), rounds=rounds, warm=warm)
        batches = [loader(k) for k in range(min(loader.count, 4 * rounds))]
    figures = {
        "model": name,
        "device": str(device),
        "dtype": dtype,
        "batch_tokens": batch_tokens,
        "threads": torch.get_num_threads(),
        **rates.document(),
    }
    if dtype == "float32":
        single, speed = mine_batches(model, batches[:_COMPARED])
        half, low_speed = mine_batches(named_model(name, "bfloat16", device), batches[:_COMPARED])
        figures |= {"bfloat16_speedup": low_speed / speed, "bfloat16_overlap": overlap(single, half)}
    return figures | {"values": value_rate(model), "neighbours": neighbour_rate(model)}


def in_text_order(copy: TokenizedCorpus) -> Iterator[list[int]]:
    """The mined sentences' tokens in corpus order, endlessly."""
    while True:
        for sentence in copy.mined.tolist():
            yield copy.tokens(sentence).tolist()


def named_model(name: str, dtype: str, device: torch.device) -> LanguageModel:
    """The random `gpt2-small`, the built-in model as `builtin`, or any other by its specification."""
    if name == "gpt2-small":
        return random_model(name, dtype=dtype, device=device)
    return load_model("builtin:pydocs" if name == "builtin" else name, dtype=dtype, device=device)


def value_rate(model: LanguageModel, *, layers: int = 2) -> dict[str, float]:
    """Values projected per second by the value pass and by the bare matrix product (of an adaptive softmax its matrices
    and normalisation), alternating; and their ratio.
    """
    chosen = range(min(layers, model.sizes.layers))
    projector, values = Projector.of(model), ValuePass(model)
    sizes = [model.sizes.memories[layer] for layer in chosen]
    targets = [Targets(*(np.zeros(n, np.int64) for n in (size, size, 0, 0))) for size in sizes]
    folded = [model.folded_values(layer) for layer in chosen]

    def project() -> None:
        for layer in chosen:
            values.columns(layer, targets[layer])

    return _against_product("value pass", project, projector, folded, model.device)


def neighbour_rate(model: LanguageModel, *, layers: int = 2) -> dict[str, float]:
    """Values compared with all others per second, by the pass and by the bare matrix product, alternating; and their
    ratio.
    """
    every = range(model.sizes.layers)
    everything = torch.cat([model.values(layer).float() for layer in every])
    projector = Projector(LinearHead(everything), len(everything), device=model.device)
    neighbours = NeighbourPass(model, every, most=MiningOptions.neighbours)
    chosen = every[:layers]
    own = torch.split(everything, [model.sizes.memories[layer] for layer in every])[: len(chosen)]

    def compare() -> None:
        for layer in chosen:
            neighbours.columns(layer)

    return _against_product("neighbours", compare, projector, own, model.device)


def _against_product(
    name: str, work: Callable[[], None], projector: Projector, vectors: Sequence[Tensor], device: torch.device
) -> dict[str, float]:
    """Vectors per second of `work` and of the bare product, and `ratio`: medians over alternating rounds after a first
    one.
    """

    def multiply() -> None:
        for own in vectors:
            for part in torch.split(own, projector.rows):
                projector.scores(part)

    works = {name: work, "matrix product": multiply}
    seconds: dict[str, list[float]] = {each: [] for each in works}
    for run in works.values():
        run()
    for _ in range(_ROUNDS):
        for each, run in works.items():
            with Stopwatch(device) as watch:
                run()
            seconds[each].append(watch.seconds)
    count = sum(map(len, vectors))
    ratio = median(bare / own for own, bare in zip(*seconds.values(), strict=True))
    return {each: count / median(times) for each, times in seconds.items()} | {"ratio": ratio}
