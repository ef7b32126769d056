"""How a module of experts joins gate and up is found by asking it: ways written out here, in both layouts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.memories.routed_experts import gating_of

LIMIT, ALPHA = 7.0, 1.702
Way = Callable[[Tensor, Tensor], Tensor]
WAYS: dict[str, Way] = {
    "plain": lambda gate, up: silu(gate) * up,
    "gate bounded before": lambda gate, up: silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT),
    "gate bounded behind": lambda gate, up: silu(gate).clamp(max=LIMIT) * up.clamp(-LIMIT, LIMIT),
    "one more than up": lambda gate, up: (
        (up.clamp(-LIMIT, LIMIT) + 1) * (gate.clamp(max=LIMIT) * torch.sigmoid(ALPHA * gate.clamp(max=LIMIT)))
    ),
}


class Experts(nn.Module):
    """A stack of gate and up, and how they are joined where `way` says so."""

    def __init__(self, way: Way | None, layout: str, **more: Any) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(2, 6, 4))
        self.act_fn = nn.SiLU()
        for name, value in more.items():
            setattr(self, name, value)
        if way is not None:
            self._apply_gate = lambda made: way(*self.split(made, layout))

    @staticmethod
    def split(made: Tensor, layout: str) -> tuple[Tensor, ...]:
        return made.chunk(2, dim=-1) if layout == "halves" else (made[..., ::2], made[..., 1::2])


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("names", [("limit", "alpha"), ("swiglu_limit", "swiglu_alpha")])
def test_the_way_and_the_layout_are_told(way: str, layout: str, names: tuple[str, str]) -> None:
    found, gating = gating_of(Experts(WAYS[way], layout, **dict(zip(names, (LIMIT, ALPHA), strict=True))))
    assert found == layout
    gate, up = 20 * torch.randn(2, 50, 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(gating(gate, up), WAYS[way](gate, up))


def test_a_module_that_says_nothing_joins_halves_in_the_usual_way() -> None:
    layout, gating = gating_of(Experts(None, "halves", act_fn=nn.GELU()))
    gate, up = torch.randn(2, 5, 9)
    assert layout == "halves"
    torch.testing.assert_close(gating(gate, up), gelu(gate) * up)


def test_a_function_of_both_is_used_as_it_is() -> None:
    class Both(nn.Module):
        def forward(self, gate: Tensor, up: Tensor, scale: float = 2.0) -> Tensor:
            return torch.tanh(gate) * up * scale

    both = Both()
    layout, gating = gating_of(Experts(both, "interleaved", act_fn=both))
    gate, up = torch.randn(2, 5, 9)
    assert layout == "interleaved"
    torch.testing.assert_close(gating(gate, up), 2 * torch.tanh(gate) * up)


def test_another_way_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match=r"^how its experts \(Experts\) combine gate and up is unknown$"):
        gating_of(Experts(lambda gate, up: gate + up, "halves"))
