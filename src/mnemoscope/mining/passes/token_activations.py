"""The coefficient of a memory at every token of the sentences of its best triggers. Makes `token_activations`.

A sentence is read once, as far as the deepest layer that asks about it, for all memories that ask. Triggers with the
same prefix count once.
"""

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor

from mnemoscope.errors import NotFinite
from mnemoscope.mining.passes.removals import WHOLE, ShortenedRuns
from mnemoscope.mining.steps import empty_answers
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.trigger_table import sentences_of
from mnemoscope.runs.workers.worker import Worker

BEST = 10
"""Different prefixes of each memory and sign."""
_NUMBERED = 128
"""Ranks that the table can hold."""


class TokenActivationPass:
    """Reads whole sentences; needs `triggers` and `sentences`."""

    def __init__(self, worker: Worker) -> None:
        self._worker, sentences = worker, sentences_of(worker)
        columns = {"memory": pl.Int32, "sign": pl.Int8, "rank": pl.Int8, "sentence": pl.Int64}
        kinds = [pl.col(name).cast(kind) for name, kind in columns.items()]
        asked = []
        for layer in worker.plan.layers:
            # The first triggers of the best different prefixes, in the table's order.
            triggers = worker.read("triggers", [*columns, "prefix_group"], layer)
            triggers = triggers.filter(pl.col("rank") == pl.col("prefix_group"), pl.col("rank") < _NUMBERED)
            best = triggers.group_by("memory", "sign", maintain_order=True).head(BEST)
            asked.append(best.select(pl.lit(layer).alias("layer"), *kinds))
        self.asked = pl.concat(asked)
        lengths = sentences.lengths[np.searchsorted(sentences.ids, self.asked["sentence"].to_numpy())]
        self._ends = np.cumsum(lengths)
        begin, length = self._ends - lengths, pl.Series("position", lengths)
        requests = self.asked.select("layer", "memory", "sentence", length, gap=WHOLE, begin=pl.Series(begin))
        runs = ShortenedRuns(requests, worker.model, sentences)
        self._answers = {"coefficients": empty_answers(int(lengths.sum()), np.float32)}
        """Of every request one after the other, at every token of its sentence."""
        self.steps = runs.steps(worker, self._answer, self._answers, stage="token activations")

    def _answer(self, layer: int, asked: dict[str, Ints], coefficients: Tensor) -> None:
        row, memory = (torch.from_numpy(asked[name]).to(coefficients.device) for name in ("run", "memory"))
        activations = coefficients[row, self._worker.model.reading.offset :, memory].float().cpu().numpy()
        position = np.arange(activations.shape[1])[None]
        inside = position < asked["position"][:, None]
        if not np.isfinite(activations[inside]).all():
            raise NotFinite(f"layer {layer} has NaN or infinite coefficients; try --dtype float32")
        self._answers["coefficients"][(asked["begin"][:, None] + position)[inside]] = activations[inside]

    def write(self) -> None:
        ends = np.concatenate([[0], self._ends])
        first = 0
        for layer in self._worker.plan.layers:
            rows = self.asked.filter(pl.col("layer") == layer)
            edges = ends[first : first + len(rows) + 1]
            first += len(rows)
            # Lists of float16, each divided by its largest magnitude, which is its `scale`.
            coefficients, starts = self._answers["coefficients"][edges[0] : edges[-1]], edges - edges[0]
            scale = np.empty(0, np.float32)
            if len(coefficients):
                scale = np.maximum.reduceat(np.abs(coefficients), starts[:-1])
            scale[scale == 0] = 1
            halves = pa.array((coefficients / np.repeat(scale, np.diff(edges))).astype(np.float16))
            columns = {name: rows[name].to_numpy() for name in ("memory", "sign", "rank")}
            columns["coefficients"] = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), halves)
            self._worker.write("token_activations", columns | {"scale": scale}, layer)
