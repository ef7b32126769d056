"""The compared loops: mining, the bare forward pass, and what users write.

All loops read the same batches alternately, a few at a time, so that a machine that slows down slows all of them.
Mining needs a forward pass only up to the last layer's coefficients, so two bare forwards are timed: the whole backbone
(`bare forward`) and one stopped where mining stops (`stopped forward`), which is equal work. Some tokens are mined
untimed first, since new triggers are frequent at the start and rare later.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.mining_options import TRIGGERS
from mnemoscope.mining.text.batch_reader import BatchReader
from mnemoscope.mining.text.batches import Batch
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.models import LanguageModel, read_coefficients
from mnemoscope.models.modules.observed import takes
from mnemoscope.models.object_state import whole_use
from mnemoscope.runs.plan import SAMPLED_TOKENS

WARM = SAMPLED_TOKENS
USER_BATCH = 32
_GROUP = 4
"""Batches per turn of a loop; a graphics card is synchronised only at their end."""
_TOO_SHORT = "the text is too short to warm up with --warm {warm} tokens and then measure; choose a lower --warm"


class TextBatches(Protocol):
    count: int

    def __call__(self, number: int) -> Batch:
        """Batch `number` on the model's device."""

    def tokens(self, numbers: Iterable[int]) -> int:
        """The number of the sentences' own tokens in these batches."""


@dataclass(frozen=True)
class Rates:
    """Tokens per second of each loop, and the median over rounds of its ratio to the bare forward."""

    tokens: int
    per_second: dict[str, float]
    ratio: dict[str, float]

    def document(self) -> dict[str, object]:
        mining = self.ratio["mining"]
        return {
            "tokens": self.tokens,
            "tokens_per_second": self.per_second,
            "share_of_bare": self.ratio,
            "mining_over_stopped_forward": mining / self.ratio["stopped forward"],
            "mining_over_user_loop": mining / self.ratio["user loop"],
            "mining_over_research_loop": mining / self.ratio["research loop"],
        }


@whole_use
def compare_loops(
    model: LanguageModel,
    batches: TextBatches,
    sentences: Iterator[list[int]],
    *,
    rounds: int,
    warm: int = WARM,
    keep: int = TRIGGERS,
) -> Rates:
    """Tokens per second of mining (triggers and activity), the bare forward, the forward stopped where mining stops,
    the user's loop and the research loop, over `rounds` groups of four batches. `sentences` are the tokens in text
    order, without end. Raises OptionError if the text is too short.
    """
    if batches.tokens(range(batches.count)) <= warm:
        raise OptionError(_TOO_SHORT.format(warm=warm))
    reader = BatchReader(model, MiningState(StateShape.of(model, keep=keep), devices=model.devices))
    research = ResearchLoop(model, keep)
    user = UserLoop(model, sentences)

    def mine(batch: Batch) -> int:
        reader.read(batch)
        return batch.tokens

    def forward(batch: Batch, stop_after: int | None = None) -> int:
        model.backbone(batch.ids, stop_after=stop_after)
        return batch.tokens

    number, seen = 0, 0
    while seen < warm:
        seen += mine(batches(number))
        number += 1
    loops: dict[str, Callable[[Batch], int]] = {
        "bare forward": forward,
        "stopped forward": lambda batch: forward(batch, model.sizes.layers - 1),
        "mining": mine,
        "user loop": user.read,
        "research loop": research.read,
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    tokens: dict[str, list[int]] = {name: [] for name in loops}
    starts = range(number, batches.count, _GROUP)[:rounds]
    if not starts:
        raise OptionError(_TOO_SHORT.format(warm=warm))
    for start in starts:
        group = [batches(k) for k in range(start, min(start + _GROUP, batches.count))]
        for name, loop in loops.items():
            with Stopwatch(model.device) as watch:
                tokens[name].append(sum(loop(batch) for batch in group))
            seconds[name].append(watch.seconds)
    reader.check()
    per_token = {name: np.divide(seconds[name], tokens[name]) for name in loops}
    return Rates(
        sum(tokens["mining"]),
        {name: sum(tokens[name]) / sum(seconds[name]) for name in loops},
        {name: float(np.median(per_token["bare forward"] / own)) for name, own in per_token.items()},
    )


class Stopwatch:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = 0.0

    def __enter__(self) -> "Stopwatch":
        self._wait()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._wait()
        self.seconds = time.perf_counter() - self._began

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class UserLoop:
    """A user's loop: the whole model with its head, 32 sentences in text order, right padding and a mask."""

    def __init__(self, model: LanguageModel, sentences: Iterator[list[int]]) -> None:
        self.model, self.sentences = model, sentences

    def read(self, batch: Batch) -> int:
        """Reads about as many tokens as `batch` has, from where it stopped; returns their number."""
        read = 0
        while read < batch.tokens:
            own = [next(self.sentences) for _ in range(USER_BATCH)]
            rows = [self.model.reading.frame(tokens) for tokens in own]
            read += sum(map(len, own))
            ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
            mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
            network, device = self.model.anatomy.model, self.model.device
            named = {"attention_mask": mask.to(device), "use_cache": False}
            with torch.inference_mode():
                network(ids.to(device), **{name: value for name, value in named.items() if takes(network, name)})
        return read


class ResearchLoop:
    """The loop of research scripts on the mined batches: sentence maxima appended to the best so far, then `topk`."""

    def __init__(self, model: LanguageModel, keep: int) -> None:
        self.model, self.keep = model, keep
        sizes, device = model.sizes.memories, model.device
        self.best = [torch.full((keep, count), -torch.inf, device=device) for count in sizes]
        self.where = [torch.zeros(keep, count, dtype=torch.int64, device=device) for count in sizes]

    def read(self, batch: Batch) -> int:
        device, width = batch.ids.device, batch.ids.shape[1]
        lengths = torch.from_numpy(batch.lengths).to(device) + width - int(batch.lengths[-1])
        place = torch.arange(width, device=device)[None]
        outside = (place >= lengths[:, None]) | (place == 0)  # position 0 is the beginning token, or an attention sink

        def take(layer: int, coefficients: Tensor) -> None:
            masked = coefficients.masked_fill(outside[:, :, None], -torch.inf)
            value, position = masked.max(dim=1)
            where = batch.sentences[:, None] * 4096 + position
            self.best[layer], order = torch.cat([self.best[layer], value.float()]).topk(self.keep, dim=0)
            self.where[layer] = torch.cat([self.where[layer], where]).gather(0, order)

        with read_coefficients(self.model, take):
            self.model.backbone(batch.ids)
        return batch.tokens


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


@whole_use
def mine_batches(model: LanguageModel, batches: Sequence[Batch], *, keep: int = TRIGGERS) -> tuple[MiningState, float]:
    reader = BatchReader(model, MiningState(StateShape.of(model, keep=keep), devices=model.devices))
    with Stopwatch(model.device) as watch:
        for batch in batches:
            reader.read(batch)
    reader.check()
    return reader.state, sum(batch.tokens for batch in batches) / watch.seconds
