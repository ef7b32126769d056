"""What keeps the experts of a layer in use: a term beside the loss that is least where all are used alike.

Of Fedus et al. 2022 (Switch Transformers, section 2.2): the number of experts times the sum over experts of the share
of choices that went to it, and the mean probability that the router gave it; 1 where both are even.
"""

from typing import Any

import torch
from torch import Tensor, nn


class BalanceTerm:
    """Sees every forward of `model` that is to have a gradient, and keeps what its routers said."""

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
        """What the last forward adds to the loss; the other terms are none of a mixture's."""
        total = torch.zeros((), device=text.device)
        for scores, chosen in self._given:
            experts = scores.shape[-1]
            shares = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
            total = total + experts * (shares * scores.float().softmax(-1).mean(0)).sum()
        count, self._given = max(1, len(self._given)), []
        return self._weight * total / count
