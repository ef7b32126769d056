"""Coefficients of every memory at the first background prefixes. Makes `samples`, which `compare` correlates."""

import numpy as np
import polars as pl
import torch

from mnemoscope.errors import NotFinite
from mnemoscope.mining.passes.prefix_pass import PrefixRows, plan_prefixes
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.models.forward.hooks import Block
from mnemoscope.runs.workers.worker import Worker

PREFIXES = 2_048


class SamplePass:
    """Reads the coefficients of all mined layers at each prefix; needs `background`. A sentence is read once, up to the
    last of its prefixes: they are the first in the text, several of a sentence.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        background = pl.read_parquet(worker.path("background"), columns=["sentence", "position"], glob=False)
        sentence, position = background.head(PREFIXES).cast(pl.Int64).to_numpy().T
        sentences, self._row = np.unique(sentence, return_inverse=True)
        last = np.zeros(len(sentences), np.int64)
        np.maximum.at(last, self._row, position)
        self._column = torch.from_numpy(worker.model.reading.column(position))
        sizes = {layer: worker.model.numbering(layer).count for layer in worker.plan.layers}
        self._answers = {str(one): empty_answers((len(sentence), size), np.float32) for one, size in sizes.items()}
        self.steps = plan_prefixes(
            worker,
            sentences,
            last,
            self._read,
            self._answers,
            stage="samples",
            unit="sentences",
            seen=True,
        )

    def _read(self, batch: PrefixRows) -> Answers:
        """Fills in the answers of the sentences' prefixes itself."""
        row, prefix = np.nonzero(batch.prefixes[:, None] == self._row)
        column = self._column[prefix]

        def keep(layer: int, block: Block) -> None:
            device = block.coefficients.device
            coefficients = block.coefficients[torch.from_numpy(row).to(device), column.to(device)].float().cpu().numpy()
            if not np.isfinite(coefficients).all():
                raise NotFinite(f"layer {layer} has NaN or infinite coefficients; try --dtype float32")
            self._answers[str(layer)][prefix] = coefficients

        batch.run(self._worker.model, keep, self._worker.plan.layers)
        return {}

    def write(self) -> None:
        for layer in self._worker.plan.layers:
            rows = self._answers[str(layer)].T
            # Both normal numbers in float16 and the largest are kept.
            scale = np.abs(rows).max(1, initial=0)
            scale[scale == 0] = 1
            columns = {"memory": np.arange(len(rows), dtype=np.int32), "scale": scale}
            self._worker.write(
                "samples", {**columns, "coefficients": (rows / scale[:, None]).astype(np.float16)}, layer
            )
