"""A loaded model's sizes, its number of parameters counted unpacked, and the errors of its proof."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mnemoscope.models.modules.linear_maps import stated_sizes
from mnemoscope.models.modules.offloading import own_parameters


@dataclass(frozen=True, repr=False)
class Sizes:
    layers: int
    hidden: int
    memories: tuple[int, ...]
    vocabulary: int
    context: int
    parameters: int
    ffn_parameters: int

    def __repr__(self) -> str:
        memories = " or ".join(f"{count:,}" for count in sorted(set(self.memories)))
        return f"<{self.layers} layers of {memories} memories, hidden {self.hidden:,}, vocabulary {self.vocabulary:,}>"


@dataclass(frozen=True)
class Proof:
    """The largest error of each check, and those of each layer (residual, ablation, keys)."""

    residual: float
    ablation: float
    keys: float
    scores: float
    layers: tuple[tuple[float, float, float], ...] = field(repr=False)


def is_packed_in_buffers(module: nn.Module) -> bool:
    """Whether it is a layer without parameters, as GPTQ and AWQ make them."""
    leaf = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
    return leaf and stated_sizes(module) is not None and any(True for _ in module.buffers())


def count_parameters(model: nn.Module) -> int:
    """The numbers in all parameters, each once; packed matrices count unpacked."""
    count = sum(parameter.numel() for parameter in own_parameters(model).values())
    for module in model.modules():
        weight, outside, inside = (getattr(module, name, None) for name in ("weight", "out_features", "in_features"))
        if isinstance(weight, nn.Parameter) and isinstance(outside, int) and isinstance(inside, int):
            count += outside * inside - weight.numel() if weight.dtype == torch.uint8 else 0
        if is_packed_in_buffers(module):
            bias = getattr(module, "bias", None)
            count += prod(stated_sizes(module) or ()) + (bias.numel() if isinstance(bias, Tensor) else 0)
        if is_parametrized(module):
            for name, made_from in module.parametrizations.items():  # type: ignore[operator,union-attr]
                stored = sum(parameter.numel() for parameter in made_from.parameters())
                count += getattr(module, name).numel() - stored
    return count
