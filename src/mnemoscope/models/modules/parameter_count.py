"""A model's number of parameters, counted unpacked."""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mnemoscope.models.modules.linear_maps import stated_sizes
from mnemoscope.models.modules.offloading import own_parameters


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
