"""Coefficients of every memory at the first background prefixes. Makes `samples`, which `compare` correlates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.errors import NotFinite
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import PrefixRows, plan_prefixes
from mnemoscope.mining.steps import empty_answers
from mnemoscope.models.forward.hooks import Block

PREFIXES = 2_048


class SamplePass:
    """Reads the coefficients of all mined layers at each prefix; needs `background`."""

    def __init__(self, run: MiningRun) -> None:
        self._run = run
        background = pl.read_parquet(run.path("background"), columns=["sentence", "position"], glob=False)
        sentence, position = background.head(PREFIXES).cast(pl.Int64).to_numpy().T
        sizes = {layer: run.model.numbering(layer).count for layer in run.plan.layers}
        self._answers = {str(one): empty_answers((len(sentence), size), np.float32) for one, size in sizes.items()}
        self.steps = plan_prefixes(
            run, sentence, position, self._read, self._answers, stage="samples", inputs=("samples",)
        )

    def _read(self, batch: PrefixRows) -> Mapping[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}

        def keep(layer: int, block: Block) -> None:
            found[str(layer)] = batch.at(block.coefficients).float().cpu().numpy()
            if not np.isfinite(found[str(layer)]).all():
                raise NotFinite(f"layer {layer} has NaN or infinite coefficients; try --dtype float32")

        batch.run(self._run.model, keep, self._run.plan.layers)
        return found

    def write(self) -> Mapping[str, Any]:
        for layer in self._run.plan.layers:
            rows = self._answers[str(layer)].T
            # Both normal numbers in float16 and the largest are kept.
            scale = np.abs(rows).max(1, initial=0)
            scale[scale == 0] = 1
            columns = {"memory": np.arange(len(rows), dtype=np.int32), "scale": scale}
            self._run.write("samples", {**columns, "coefficients": (rows / scale[:, None]).astype(np.float16)}, layer)
        return {}
