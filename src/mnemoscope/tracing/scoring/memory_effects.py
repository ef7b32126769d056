"""The direct effect of every memory on a logit: what its value adds to it, all norms behind it linear at their scales.

d_i = m_i <v_i, w>, with w the direction in the layer's output that the logit reads (definitions.md section 9,
attribute). The parts of whole layers are those of logit_parts.py, to which memories and the layer's own biases add up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from mnemoscope.models import Block, LanguageModel
from mnemoscope.models.readout.token_logits import FrozenNorm

_TOGETHER = 4096
"""Values that are multiplied in float64 at a time."""


@dataclass(frozen=True)
class WrittenValues:
    """What one layer's memories wrote at some rows, and what the norms and the gate behind them read. `coefficients
    [row, memory]`, the rest `[row, hidden]`, of `weights [row, expert]`; None and empty where there is no such part.
    """

    coefficients: Tensor
    ffn_output: Tensor
    weights: Tensor | None
    opened: Tensor | None
    branches: tuple[Tensor, ...]

    @classmethod
    def of(cls, block: Block, at: Callable[[Tensor], Tensor]) -> Self:
        weights, opened = (None if one is None else at(one) for one in (block.weights, block.opened))
        return cls(at(block.coefficients), at(block.ffn_output), weights, opened, tuple(map(at, block.branches)))


@final
class MemoryEffects:
    """Direct effects in the layers of one model; make one per pass."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, layers = model, model.anatomy.layers
        self._behind = [FrozenNorm(model, layer.post_norm) for layer in layers]
        self._branches = [[FrozenNorm(model, branch.behind) for branch in layer.ffn.branches] for layer in layers]

    def of_layer(self, layer: int, direction: Tensor, written: WrittenValues) -> tuple[Tensor, Tensor]:
        """The effects `[row, memory]` and the part `[row]` of the biases among them, float64. `direction [row, hidden]`
        is what a row's logit reads of the layer's addition to the stream, from `LogitSplitter.split`.
        """
        parts, device = self._model.layer(layer), direction.device
        if parts.output_norm is None:
            direction = direction * parts.update_scale
        if written.opened is not None:
            direction = direction * torch.sigmoid(written.opened.to(device).double())
        direction, bias = self._behind[layer].step_back(direction, written.ffn_output)
        ffn_bias = parts.ffn.bias(written.weights)
        if ffn_bias is not None:
            bias = bias + (direction * ffn_bias.to(device).double()).sum(-1)
        into = [
            norm.step_back(direction, read) for norm, read in zip(self._branches[layer], written.branches, strict=True)
        ]
        directions = [one for one, _ in into] or [direction]
        for _, added in into:
            bias = bias + added
        values, of = self._model.values(layer), self._model.branch_of(layer)
        effects = torch.empty(len(direction), len(values), dtype=torch.float64, device=device)
        for number, read in enumerate(directions):
            for rows in torch.split((of == number).nonzero()[:, 0], _TOGETHER):
                some = values[rows.to(values.device)].to(device).double()
                effects[:, rows.to(device)] = read @ some.T
        return effects.mul_(written.coefficients.to(device)), bias
