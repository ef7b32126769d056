"""How a module of experts arranges gate and up in one matrix and joins them, found by calling it."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.memories.feed_forward import Activation
from mnemoscope.models.modules.observed import same
from mnemoscope.models.modules.offloading import device_of_module

Layout = Literal["halves", "interleaved"]
Gating = Callable[[Tensor, Tensor], Tensor]
"""Gate and up [..., memory] -> activation."""


def plainly(activation: Activation) -> Gating:
    return lambda gate, up: activation(gate) * up


def gating_of(module: Any) -> tuple[Layout, Gating]:
    """The layout and the joining function, found by calling the module; raises ModelUnsupported."""
    weight = module.gate_up_proj
    generator = torch.Generator().manual_seed(0)
    made = (10 * torch.randn(64, 64, generator=generator)).to(device=device_of_module(module), dtype=weight.dtype)
    own = getattr(module, "_apply_gate", None)
    activation: Callable[..., Tensor] = getattr(module, "act_fn", nn.functional.silu)
    if own is None:
        return "halves", plainly(activation)
    limit, alpha = (
        next((float(value) for name in names if isinstance(value := getattr(module, name, None), int | float)), default)
        for names, default in ((("limit", "swiglu_limit"), torch.inf), (("alpha", "swiglu_alpha"), 1.0))
    )
    with torch.inference_mode():
        expected = own(made)
        halves, interleaved = made.chunk(2, dim=-1), (made[..., ::2], made[..., 1::2])
        ways = plainly(activation), *_bounded_ways(activation, limit, alpha)
        taken = inspect.signature(getattr(activation, "forward", activation)).parameters.values()
        takes_two = sum(parameter.default is parameter.empty for parameter in taken) == 2
        for gating in (activation,) if takes_two else ways:
            for layout, (gate, up) in (("halves", halves), ("interleaved", interleaved)):
                if same(gating(gate, up), expected):
                    return layout, gating  # type: ignore[return-value]
    raise ModelUnsupported(f"how its experts ({type(module).__name__}) combine gate and up is unknown")


def _bounded_ways(activation: Activation, limit: float, alpha: float) -> tuple[Gating, ...]:
    def glu_plus_one(gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(max=limit)
        return (up.clamp(-limit, limit) + 1) * (gate * torch.sigmoid(gate * alpha))

    return (
        lambda gate, up: activation(gate.clamp(max=limit)) * up.clamp(-limit, limit),
        lambda gate, up: activation(gate).clamp(max=limit) * up.clamp(-limit, limit),
        glu_plus_one,
    )
