"""A load-balancing term added to the loss of a mixture of experts (Fedus et al. 2022, Switch Transformers, section
2.2).

The number of experts times the sum over experts of the share of tokens routed to it and the router's mean probability
for it; 1 if both are uniform.
"""

from typing import Any

import torch
from torch import Tensor, nn


class BalanceTerm:
    """Records the routers' outputs of every forward of `model` with gradients."""

    def __init__(self, model: Any, weight: float) -> None:
        self._weight = weight
        self._given: list[tuple[Tensor, Tensor]] = []
        for block in model.base_model.layers:
            block.mlp.gate.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            scores, _, chosen = output
            self._given.append((scores, chosen))

    def penalty(self, text: Tensor, *, sparsity: float, free: float, revival: float) -> Tensor:
        """The term of the last forward. A mixture has no sparsity or revival."""
        total = torch.zeros((), device=text.device)
        for scores, chosen in self._given:
            experts = scores.shape[-1]
            shares = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
            total = total + experts * (shares * scores.float().softmax(-1).mean(0)).sum()
        count, self._given = max(1, len(self._given)), []
        return self._weight * total / count
