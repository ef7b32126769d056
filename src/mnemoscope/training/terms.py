"""The terms added to the loss: sparsity and revival of a dense model, balance of a mixture's experts.

Sparsity: the log of the effective number of memories of a layer, (sum c)^2 / sum c^2 with c = coefficient times norm of
the value (definitions.md section 4, Figure 7), above a free number. Unlike a penalty on coefficients, it is invariant
to a rescaling of coefficients and values. Without a free number, layers stop firing (docs/log). Its weight grows with
depth from 0 in the first layer, since lower layers need many memories at a time.

Revival: a memory that fires nowhere in a batch has no gradient, so its greatest pre-activation in the batch is raised
to zero. Tokens between sentences are ignored: a memory that fires only there never fires on a sentence read alone.

Balance (Fedus et al. 2022, Switch Transformers, section 2.2): the number of experts times the sum over experts of the
share of tokens routed to it times the router's mean probability for it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_EPSILON = 1e-9
"""Added to both squares, so that a token at which no memory fires has the effective number 1."""


class MemoryTerms:
    def __init__(self, model: Any) -> None:
        self._values: list[nn.Linear] = []
        self._coefficients: dict[int, Tensor] = {}
        self._matches: dict[int, Tensor] = {}
        for layer, block in enumerate(model.gpt_neox.layers):
            self._values.append(block.mlp.dense_4h_to_h)
            block.mlp.dense_h_to_4h.register_forward_hook(_keep(self._matches, layer))
            block.mlp.dense_4h_to_h.register_forward_pre_hook(_keep(self._coefficients, layer))

    def penalty(self, text: Tensor, *, sparsity: float, free: float, revival: float) -> Tensor:
        """Of the last forward. `text [batch, position]` is True at a sentence's own tokens. `sparsity` is the last
        layer's weight, `free` the effective number without a penalty.
        """
        total, text = torch.zeros((), device=self._values[0].weight.device), text.flatten()
        shares = torch.linspace(0, 1, len(self._values)).tolist() if len(self._values) > 1 else [1.0]
        for layer, values in enumerate(self._values):
            coefficients, matches = self._coefficients.pop(layer), self._matches.pop(layer)
            if weight := sparsity * shares[layer]:
                effective = log_effective(coefficients, values.weight.norm(dim=0))
                total = total + weight * torch.relu(effective - math.log(free)).mean()
            if revival and text.any():
                total = total + revival * torch.relu(-matches.flatten(0, -2)[text].amax(0)).float().mean()
        return total


def _keep(kept: dict[int, Tensor], layer: int) -> Callable[..., None]:
    """A hook that stores a module's output or, as a pre-hook, its input."""

    def store(_: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
        if torch.is_grad_enabled():
            kept[layer] = (outputs or inputs)[0]

    return store


def log_effective(coefficients: Tensor, norms: Tensor) -> Tensor:
    """Shape `[...]` for `coefficients [..., memory]`; `norms` are those of the values."""
    coefficients = coefficients.float()
    total, squares = coefficients @ norms, coefficients.square() @ norms.square()
    return ((total.square() + _EPSILON) / (squares + _EPSILON)).log()


class BalanceTerm:
    def __init__(self, model: Any, weight: float) -> None:
        self._weight = weight
        self._routed: list[tuple[Tensor, Tensor]] = []
        for block in model.base_model.layers:
            block.mlp.gate.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            scores, _, chosen = output
            self._routed.append((scores, chosen))

    def penalty(self, text: Tensor, *, sparsity: float, free: float, revival: float) -> Tensor:
        total = torch.zeros((), device=text.device)
        for scores, chosen in self._routed:
            experts = scores.shape[-1]
            shares = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
            total = total + experts * (shares * scores.float().softmax(-1).mean(0)).sum()
        count, self._routed = max(1, len(self._routed)), []
        return self._weight * total / count
