"""The median over the validation prefixes of what the norms before the head divide each layer's values by.

A value at its typical activation (definitions.md section 2) needs this number, so one product with the head gives
values at coefficient 1 and at typical activations. Runs without the head.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import Prefixes, PrefixRows, check_finite, plan_prefixes
from mnemoscope.mining.steps import Answers, empty_answers
from mnemoscope.models.forward.hooks import Block
from mnemoscope.tracing.scoring.scores import own_norm_scales


class ScalePass:
    """Reads the scale of every layer, and of every branch of a layer that has several, at every prefix."""

    def __init__(self, run: MiningRun) -> None:
        self._model, self._layers = run.model, run.plan.layers
        self._prefixes = prefixes = Prefixes.of(run)
        self._branches = [len(run.model.layer(layer).ffn.branches) for layer in run.plan.layers]
        self._ways = max(1, *self._branches)
        self._scale = empty_answers((len(prefixes.position), len(self._layers), self._ways), np.float32)
        self.steps = plan_prefixes(
            run, prefixes.sentence, prefixes.position, self._read, {"scale": self._scale}, stage="scales"
        )

    def _read(self, batch: PrefixRows) -> Answers:
        model = self._model
        kept: dict[int, tuple[Tensor, Tensor, list[Tensor]]] = {}

        def keep(layer: int, block: Block) -> None:
            branches = [batch.at(tensor) for tensor in block.branches]
            kept[layer] = batch.at(block.residual), batch.at(block.ffn_output), branches

        last = model.norm_scale(batch.run(model, keep, self._layers), layer=None)[:, None]
        scales = [last * own_norm_scales(model, layer, *kept[layer]) for layer in self._layers]
        scale = np.stack([each.expand(-1, self._ways).cpu().numpy() for each in scales], 1)
        check_finite(scale, self._prefixes.sentence[batch.prefixes], "predictions", self._layers)
        return {"scale": scale}

    def write(self) -> Mapping[str, Any]:
        """The scale of each mined layer, one per branch where it has several; None without prefixes."""
        if not len(self._scale):
            return {"value_scales": [None] * len(self._layers)}
        medians = np.median(self._scale.astype(np.float64), axis=0).tolist()
        scales = [median[:count] if count else median[0] for median, count in zip(medians, self._branches, strict=True)]
        return {"value_scales": scales}
