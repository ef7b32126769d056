"""How shortened sentences are run: each once, as a row of a padded batch, whatever is asked about it.

A run is a sentence without one of its tokens, or as it stands, as far as anything in it is asked on one side of a
boundary of the model (company.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.mining.text.batches import pack, pad
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.hooks import read_coefficients
from mnemoscope.models.proof.company import sides

Ints = NDArray[np.int64]

WHOLE = -1
"""In place of a removed token: the sentence as it stands."""

Answer = Callable[[int, Ints, Tensor], None]
"""Given a layer, the numbers of requests and their coefficients."""


@dataclass(frozen=True)
class Requests:
    """What is asked: for each request a layer and memory, and the coefficient at `position - 1` of its sentence without
    token `gap`.
    """

    layer: Ints
    memory: Ints
    sentence: Ints
    gap: Ints
    position: Ints

    def at(self, places: Ints | slice) -> "Requests":
        """Some of them."""
        return Requests(*(each[places] for each in vars(self).values()))


class ShortenedRuns:
    """Every run is an item, and a row of a batch of `area` tokens; sorted by their deepest layer, and by length.

    `cuts` are the items of each batch.
    """

    def __init__(self, requests: Requests, model: LanguageModel, sentences: NamedSentences, *, area: int) -> None:
        self._model, self._sentences, self._extra = model, sentences, model.beginning.length
        side = sides(model, requests.position + self._extra)
        self._runs, run = _runs_of(requests, side, "layer", "position", "sentence", "gap")
        self._order = np.argsort(run, kind="stable")
        self._run, self._requests = run[self._order], requests.at(self._order)
        lengths = self._runs["position"].to_numpy() + self._extra
        apart = self._runs["layer"].to_numpy() * (1 + len(model.boundaries)) + self._runs["side"].to_numpy()
        self.cuts = pack(lengths, area=area, rows=area, apart=apart)

    def take(self, items: slice, answer: Answer) -> None:
        """Runs items, and answers all that is asked of them."""
        ids = pad([self._shorten(*run) for run in self._runs[items].select("sentence", "gap", "position").iter_rows()],
                  self._model)  # fmt: skip
        begin, end = np.searchsorted(self._run, (items.start, items.stop))
        asked, numbers, run = self._requests.at(slice(begin, end)), self._order[begin:end], self._run[begin:end]

        def read(layer: int, coefficients: Tensor) -> None:
            here = np.flatnonzero(asked.layer == layer)
            places = (run[here] - items.start, asked.position[here] - 1 + self._extra, asked.memory[here])
            answer(layer, numbers[here], coefficients[_tensors(*places)])

        layers = np.unique(asked.layer).tolist()
        with torch.inference_mode(), read_coefficients(self._model, read, layers=layers, own_thread=True):
            self._model.backbone(ids, stop_after=layers[-1])

    def _shorten(self, sentence: int, gap: int, position: int) -> NDArray[np.int32]:
        """The tokens of one run's sentence without the removed one, as far as they are asked about."""
        tokens = self._sentences.of(sentence)[: position + 1]
        return tokens[:-1] if gap == WHOLE else np.delete(tokens, gap)


def _runs_of(requests: Requests, side: Ints, *order: str) -> tuple[pl.DataFrame, Ints]:
    """The runs that answer all requests, in that order, with their deepest layer and last position; each request's.

    `side` says of each request on which side of which boundary its row lies.
    """
    asked = pl.DataFrame({name: getattr(requests, name) for name in ("sentence", "gap", "layer", "position")})
    asked, one = asked.with_columns(pl.Series("side", side)), ("sentence", "gap", "side")
    runs = asked.group_by(one).agg(pl.col("layer").max(), pl.col("position").max()).sort(*order, "side")
    found = asked.join(runs.select(one).with_row_index("run"), on=one, maintain_order="left")["run"]
    return runs, found.to_numpy().astype(np.int64)


def _tensors(*arrays: Ints) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, arrays))
