"""How fast mining is, against what it could be and against what people write: ratios within one run.

All loops see the same batches in turn, a batch each, so a machine that slows down slows them alike. Mining needs no
more of a forward pass than the last layer's coefficients, so two bare forwards are timed: the whole backbone
(`bare forward`) and the same stopped where mining stops (`stopped forward`), which is equal work. The state is warm
first: `WARM` tokens are mined, untimed, since survivors are many at the start and rare after.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from mnemoscope.corpus import open_source, prepare
from mnemoscope.errors import OptionError
from mnemoscope.mining.batch_loader import Batch, BatchLoader
from mnemoscope.mining.plan import SAMPLED_TOKENS, default_batch_tokens
from mnemoscope.mining.state import MiningState, StateShape
from mnemoscope.mining.text_pass import BatchReader
from mnemoscope.mining.values import Projector, Targets, value_table
from mnemoscope.mining_options import MiningOptions
from mnemoscope.models import LanguageModel, load_model, read_coefficients
from mnemoscope.models.huggingface import builtin_folder
from mnemoscope.models.observed import takes
from mnemoscope.progress import Progress, ignore_progress

TEXT = "builtin:pydocs:stdlib"
WARM = SAMPLED_TOKENS
USER_BATCH = 32
_TOO_SHORT = "the text is too short to warm up with --warm {warm} tokens and then measure; choose a lower --warm"


@dataclass(frozen=True)
class Rates:
    """Tokens per second of each loop, and the median over rounds of its share of the bare forward's rate."""

    tokens: int
    per_second: dict[str, float]
    ratio: dict[str, float]


def compare_loops(
    model: LanguageModel,
    loader: BatchLoader,
    *,
    rounds: int,
    warm: int = WARM,
    keep: int = MiningOptions.triggers,
    progress: Progress = ignore_progress,
) -> Rates:
    """Mining (triggers and activity) against the bare backbone forward, that forward stopped where mining stops, the
    user's loop and the research loop.

    `rounds` groups of four batches are timed. The user's loop gets the same sentences in text order in batches of 32.
    Raises OptionError if the text is too short.
    """
    if loader.tokens(range(loader.count)) <= warm:
        raise OptionError(_TOO_SHORT.format(warm=warm))
    reader = BatchReader(model, MiningState(StateShape.of(model, keep=keep), device=model.device))
    research = ResearchLoop(model, keep)
    user = UserLoop(model, loader.in_text_order())

    def mine(batch: Batch) -> None:
        reader.read(batch)
        reader.count()

    number, seen = 0, 0
    while seen < warm:
        batch = loader(number)
        mine(batch)
        seen += batch.tokens
        number += 1
        progress("warming up", seen, warm, "tokens")
    loops: dict[str, Callable[[Batch], object]] = {
        "bare forward": lambda batch: model.backbone(batch.ids),
        "stopped forward": lambda batch: model.backbone(batch.ids, stop_after=model.sizes.layers - 1),
        "mining": mine,
        "user loop": user.read,
        "research loop": research.read,
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    tokens: dict[str, list[int]] = {name: [] for name in loops}
    starts = range(number, loader.count, 4)[:rounds]
    if not starts:
        raise OptionError(_TOO_SHORT.format(warm=warm))
    for done, start in enumerate(starts, 1):
        group = [loader(k) for k in range(start, min(start + 4, loader.count))]
        for name, loop in loops.items():
            took, read = 0.0, 0
            for batch in group:
                took += _seconds(partial(loop, batch), model.device)
                read += user.tokens if name == "user loop" else batch.tokens
            seconds[name].append(took)
            tokens[name].append(read)
        progress("comparing", done, rounds, "rounds")
    per_token = {name: np.divide(seconds[name], tokens[name]) for name in loops}
    return Rates(
        sum(tokens["mining"]),
        {name: sum(tokens[name]) / sum(seconds[name]) for name in loops},
        {name: float(np.median(per_token["bare forward"] / own)) for name, own in per_token.items()},
    )


class UserLoop:
    """What a user writes: the whole model with its head, 32 sentences in text order, right padding and a mask."""

    def __init__(self, model: LanguageModel, sentences: Iterator[list[int]]) -> None:
        self.model, self.sentences = model, sentences
        self.tokens = 0

    def read(self, batch: Batch) -> None:
        """Reads about as many tokens as `batch` has, from where it stopped; `tokens` says how many."""
        self.tokens = 0
        beginning = self.model.beginning.tokens
        while self.tokens < batch.tokens:
            rows = [beginning + next(self.sentences) for _ in range(USER_BATCH)]
            self.tokens += sum(len(row) - len(beginning) for row in rows)
            ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
            mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
            network, device = self.model.anatomy.model, self.model.device
            named = {"attention_mask": mask.to(device), "use_cache": False}
            with torch.inference_mode():
                network(ids.to(device), **{name: value for name, value in named.items() if takes(network, name)})


class ResearchLoop:
    """The loop of research scripts on the mined batches: sentence maxima joined to the best, then `topk`."""

    def __init__(self, model: LanguageModel, keep: int) -> None:
        self.model, self.keep = model, keep
        self.best = [torch.full((keep, count), -torch.inf) for count in model.sizes.memories]
        self.where = [torch.zeros(keep, count, dtype=torch.int64) for count in model.sizes.memories]

    def read(self, batch: Batch) -> None:
        """Runs one batch."""
        extra = batch.ids.shape[1] - int(batch.lengths[-1])
        lengths = torch.from_numpy(batch.lengths) + extra
        place = torch.arange(batch.ids.shape[1])[None]
        outside = (place >= lengths[:, None]) | (place == 0)  # position 0 is the beginning token, or a sink

        def take(layer: int, coefficients: Tensor) -> None:
            masked = coefficients.masked_fill(outside[:, :, None], -torch.inf)
            value, position = masked.max(dim=1)
            where = batch.sentences[:, None] * 4096 + position
            self.best[layer], order = torch.cat([self.best[layer], value.float()]).topk(self.keep, dim=0)
            self.where[layer] = torch.cat([self.where[layer], where]).gather(0, order)

        with read_coefficients(self.model, take):
            self.model.backbone(batch.ids)


def value_rate(model: LanguageModel, *, layers: int = 2) -> dict[str, float]:
    """Values projected per second by the value pass and by the bare matrix product, in turn; and their ratio.

    Under an adaptive softmax the bare product is that of its matrices and its normalisation.
    """
    seconds: dict[str, list[float]] = {"value pass": [], "matrix product": []}
    count = 0
    for layer in range(min(layers, model.sizes.layers)):
        memories = model.sizes.memories[layer]
        count += memories
        wanted = Targets(*(np.zeros(n, np.int64) for n in (memories, 0, 0)))
        folded = model.fold(model.values(layer), layer=layer)
        projector = Projector(model)

        def product(projector: Projector = projector, folded: Tensor = folded) -> None:
            for start in range(0, len(folded), projector.rows):
                projector.scores(folded[start : start + projector.rows])

        product()
        seconds["matrix product"].append(_seconds(product, model.device))
        seconds["value pass"].append(_seconds(partial(value_table, model, layer, wanted), model.device))
    rates = {name: count / sum(times) for name, times in seconds.items()}
    return {**rates, "ratio": rates["value pass"] / rates["matrix product"]}


def measure(name: str, *, rounds: int, warm: int = WARM, progress: Progress = ignore_progress) -> dict[str, Any]:
    """All figures for one model (`builtin` or `gpt2-small`) on the documentation of the standard library."""
    model = load_model("builtin:pydocs") if name == "builtin" else gpt2_shaped()
    with tempfile.TemporaryDirectory(prefix="mnemoscope-") as folder:
        copy = prepare(
            open_source(TEXT), model, directory=Path(folder), longest=model.longest,
            split="sentence", vocabulary=model.sizes.vocabulary,
        )  # fmt: skip
        batch_tokens = default_batch_tokens(model)
        loader = BatchLoader(copy, model, batch_tokens=batch_tokens, seed=0)
        rates = compare_loops(model, loader, rounds=rounds, warm=warm, progress=progress)
        batches = [loader(k) for k in range(min(loader.count, 4 * rounds))]
    progress("bfloat16", 0, None, "")
    single, speed = mine_batches(model, batches)
    low = load_model("builtin:pydocs", dtype="bfloat16") if name == "builtin" else gpt2_shaped(torch.bfloat16)
    half, low_speed = mine_batches(low, batches)
    return {
        "model": name,
        "tokens": rates.tokens,
        "batch_tokens": batch_tokens,
        "threads": torch.get_num_threads(),
        "tokens_per_second": rates.per_second,
        "share_of_bare": rates.ratio,
        "mining_over_stopped_forward": rates.ratio["mining"] / rates.ratio["stopped forward"],
        "mining_over_user_loop": rates.ratio["mining"] / rates.ratio["user loop"],
        "mining_over_research_loop": rates.ratio["mining"] / rates.ratio["research loop"],
        "bfloat16_speedup": low_speed / speed,
        "bfloat16_overlap": overlap(single, half),
        "values": value_rate(model),
    }


def gpt2_shaped(dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A random model of GPT-2 small's shape; it reads text with the built-in model's tokenizer, which fits its head."""
    torch.manual_seed(0)
    network: Any = GPT2LMHeadModel(GPT2Config())
    return load_model(
        network.eval().to(dtype), tokenizer=AutoTokenizer.from_pretrained(str(builtin_folder("pydocs"))), dtype=dtype
    )


def overlap(first: MiningState, second: MiningState) -> float:
    """The mean share of each memory's triggers (layer, sign, sentence) that two states have in common."""
    shares: list[float] = []
    for key, one in first.triggers.items():
        a, b = one.state()["sentence"], second.triggers[key].state()["sentence"]
        for left, right in zip(a.tolist(), b.tolist(), strict=True):
            own = {s for s in left if s >= 0}
            if own:
                shares.append(len(own & set(right)) / len(own))
    return statistics.fmean(shares) if shares else 1.0


def mine_batches(
    model: LanguageModel, batches: Sequence[Batch], *, keep: int = MiningOptions.triggers
) -> tuple[MiningState, float]:
    """The state after some batches, and tokens per second."""
    reader = BatchReader(model, MiningState(StateShape.of(model, keep=keep), device=model.device))
    began = time.perf_counter()
    for batch in batches:
        reader.read(batch)
        reader.count()
    return reader.state, sum(batch.tokens for batch in batches) / (time.perf_counter() - began)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
