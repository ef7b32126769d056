"""How often and how strongly the router of one layer chooses each of its experts (definitions.md section 7.1)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.mining.text.exact_sums import ROWS, add_sums, exact_sum, value_of


class Routing:
    """Running counts of one layer's experts, all `[expert]`; `add_state` is associative and commutative. `tokens`
    routed to an expert, the sum of their `weight`, and how often it was the `first` choice: the largest weight, of
    equal ones that of the lowest expert. A shared expert is never a choice.
    """

    def __init__(self, experts: int, *, device: torch.device | str = "cpu") -> None:
        self.positions = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(experts, dtype=torch.int64, device=device)
        self.weight = torch.zeros(ROWS, experts, dtype=torch.int64, device=device)
        self.first = torch.zeros(experts, dtype=torch.int64, device=device)

    def add(self, weights: Tensor, routed: int) -> None:
        """Counts a batch; `weights [token, expert]` are zero where a token was not routed to the expert."""
        self.positions += len(weights)
        self.tokens[:routed] += (weights[:, :routed] != 0).sum(0)
        self.tokens[routed:] += len(weights)
        self.weight = add_sums(self.weight, exact_sum(weights.double().sum(0)))
        choice, is_routed = weights[:, :routed].max(1).indices, weights[:, :routed].any(1)
        self.first[:routed] += torch.bincount(choice[is_routed], minlength=routed)

    def add_state(self, state: dict[str, Tensor]) -> None:
        for name, tensor in vars(self).items():
            setattr(self, name, add_sums(tensor, state[name]) if name == "weight" else tensor + state[name])

    def columns(self, layer: int) -> dict[str, Any]:
        experts = len(self.tokens)
        return {
            "layer": np.full(experts, layer, np.int16),
            "expert": np.arange(experts, dtype=np.int16),
            "tokens": self.tokens.cpu().numpy(),
            "weight_sum": value_of(self.weight).cpu().numpy(),
            "first_choice": self.first.cpu().numpy(),
        }

    def state(self) -> dict[str, Tensor]:
        return dict(vars(self))

    def load(self, state: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)
