"""The linear maps of a model as matrices: read where they are stored plainly, probed where they are not.

A quantised or adapted layer (torchao, bitsandbytes, LoRA and other adapters) holds no matrix that says what it
computes. What it makes of every unit vector does (definitions.md section 7.4): so nothing needs to be known of a
format, and the load-time proof judges the outcome as it judges every model's.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.offloading import device_of_module, own_parameters, weight_of

_ADAPTERS = ("peft",)
"""Packages whose layers show the weight of the layer that they adapt, which is not what they compute."""
_TALKATIVE = logging.getLogger("bitsandbytes")
_UNIT_VECTORS = 1 << 24
"""Numbers of unit vectors, or of what comes of them, that exist at one time."""
_LINEAR = 2e-2
"""How far a map may be from what its matrix says, of the largest entry of what it gives out."""


@dataclass(frozen=True)
class LinearMap:
    """Rows `first .. first + count` of a linear module's outputs, whichever way round it stores its matrix.

    `transposed` means [in, out] (Conv1D of GPT-2) where nn.Linear has [out, in].
    """

    module: nn.Module
    transposed: bool
    first: int
    count: int

    @staticmethod
    def whole(module: nn.Module, *, transposed: bool = False) -> "LinearMap":
        """The map of all of the module's outputs; a Conv1D is always transposed."""
        transposed = transposed or type(module).__name__ == "Conv1D"
        return LinearMap(module, transposed, 0, _sizes(module, transposed)[0])

    def halves(self, order: tuple[str, str]) -> tuple["LinearMap", "LinearMap"]:
        """Gate and up, of outputs that fuse them in this order."""
        count = self.count // 2
        first, second = (replace(self, first=start, count=count) for start in (0, count))
        return (first, second) if order == ("gate", "up") else (second, first)

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the matrix, without making it."""
        return self.count, _sizes(self.module, self.transposed)[1]

    @property
    def is_probed(self) -> bool:
        """Whether the matrix is what the module makes of unit vectors, since none is stored."""
        return not is_plain(self.module)

    def weight(self) -> Tensor:
        """The matrix [out, in], without gradients: a view of the module's own, or probed anew."""
        if self.is_probed:
            matrix = probe(self.module)
        else:
            matrix = matrix_of(self.module).detach()
            matrix = matrix.T if self.transposed else matrix
        return matrix[self.first : self.first + self.count]

    def bias(self) -> Tensor | None:
        """The bias [out], without gradients, or None: a view of the module's own, or what it makes of zeros."""
        if self.is_probed:
            bias = probe_bias(self.module)
        else:
            has_one = isinstance(getattr(self.module, "bias", None), Tensor)
            bias = weight_of(self.module, "bias").detach() if has_one else None
        return None if bias is None else bias[self.first : self.first + self.count]

    def __call__(self, inputs: Tensor) -> Tensor:
        """These outputs alone [..., out], of inputs [..., in]."""
        return nn.functional.linear(inputs, self.weight(), self.bias())


def is_plain(module: nn.Module) -> bool:
    """Whether the module's matrix lies in its `weight` as it is multiplied."""
    weight: Any = getattr(module, "weight", None)
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.dim() == 2
        and bool(weight.is_floating_point())
        and not is_of_adapters(module)
    )


def is_of_adapters(thing: object) -> bool:
    """Whether a layer, or a whole model, is of a library of adapters."""
    return type(thing).__module__.partition(".")[0] in _ADAPTERS


def matrix_of(module: nn.Module) -> Tensor:
    """The module's matrix: as it stores it where it is plain, else [out, in], probed.

    Raises ModelUnsupported where there is neither a matrix nor a linear map.
    """
    if not is_plain(module):
        return probe(module)
    return weight_of(module, "weight")


def rows_of(module: nn.Module) -> int:
    """How many rows `matrix_of` has, without reading a plain one."""
    weight: Tensor = module.weight if is_plain(module) else probe(module)  # type: ignore[assignment]
    return weight.shape[0]


def computes_in(module: nn.Module) -> tuple[torch.dtype, torch.device]:
    """The dtype and the device of what a linear module gives out."""
    weight: Tensor = module.weight if is_plain(module) else probe(module)  # type: ignore[assignment]
    return weight.dtype, device_of_module(module) if weight.is_meta else weight.device


def count_parameters(model: nn.Module) -> int:
    """The numbers in all parameters, each once; of a packed matrix as many as it stands for."""
    count = sum(parameter.numel() for parameter in own_parameters(model).values())
    for module in model.modules():
        weight, outside, inside = (getattr(module, name, None) for name in ("weight", "out_features", "in_features"))
        if isinstance(weight, nn.Parameter) and isinstance(outside, int) and isinstance(inside, int):
            count += outside * inside - weight.numel() if weight.dtype == torch.uint8 else 0
    return count


@torch.inference_mode()
def probe(module: nn.Module) -> Tensor:
    """What a linear module makes of every unit vector `[out, in]`, its biases left out.

    Raises ModelUnsupported where it cannot be asked, or is not linear (formats that quantise what goes into a layer).
    """
    if any(weight.is_meta for weight in module.parameters()):
        raise ModelUnsupported(
            f"a {type(module).__name__}, whose matrix is packed or adapted, lies on the CPU or on disk while it is not"
            " used, where it cannot be read; give the model a device that holds it"
        )
    outside, inside = _sizes(module, False)
    dtype, device = _computes_in(module)
    at_once = max(1, _UNIT_VECTORS // max(inside, outside))
    rows = []
    with _without_biases(module):
        for start in range(0, inside, at_once):
            count = min(at_once, inside - start)
            units = torch.zeros(count, inside, dtype=dtype, device=device)
            units[torch.arange(count), torch.arange(start, start + count)] = 1.0
            rows.append(_ask(module, units))
        matrix = torch.cat(rows).T
        if matrix.shape != (outside, inside):
            raise ModelUnsupported(f"a {type(module).__name__} gives {matrix.shape[0]} numbers where it says {outside}")
        _check_linear(module, matrix, dtype)
    return matrix


@torch.inference_mode()
def probe_bias(module: nn.Module) -> Tensor | None:
    """What a linear module makes of zeros `[out]`; None where that is nothing."""
    dtype, device = _computes_in(module)
    given = _ask(module, torch.zeros(1, _sizes(module, False)[1], dtype=dtype, device=device))[0]
    return given if bool(given.any()) else None


def _ask(module: nn.Module, inputs: Tensor) -> Tensor:
    # Not by calling it, since hooks that watch a model's own forward must not see this. A layer that rounds what goes
    # in says so in the log, time and again, and is then refused in one line.
    level = _TALKATIVE.level
    _TALKATIVE.setLevel(logging.ERROR)
    try:
        given = module.forward(inputs)
    finally:
        _TALKATIVE.setLevel(level)
    if not isinstance(given, Tensor):
        raise ModelUnsupported(f"a {type(module).__name__} does not give one tensor, so it is no linear map")
    return given


def _check_linear(module: nn.Module, matrix: Tensor, dtype: torch.dtype) -> None:
    """Raises ModelUnsupported where entries of very different size do not give what the matrix says."""
    inside = matrix.shape[1]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, inside, generator=generator) * 10.0 ** torch.linspace(-3, 1, inside)[None]
    inputs = inputs.to(device=matrix.device, dtype=dtype)
    given, said = _ask(module, inputs).float(), inputs.float() @ matrix.float().T
    small = inputs.clone()
    small[:, inside // 2 :] = 0  # what a format that quantises its inputs would lose beside the large entries
    difference = given - _ask(module, inputs - small).float()
    said_small = small.float() @ matrix.float().T
    wrong = max(_distance(given, said), _distance(difference, said_small) if dtype == torch.float32 else 0.0)
    if not wrong <= _LINEAR:
        raise ModelUnsupported(
            f"a {type(module).__name__} is not linear in what goes into it (its format quantises that, too);"
            " --dequantize widens the weights at load"
        )


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))


def _sizes(module: nn.Module, transposed: bool) -> tuple[int, int]:
    """Outputs and inputs of a linear module."""
    if is_plain(module):
        rows, columns = module.weight.shape  # type: ignore[misc]
        return (columns, rows) if transposed else (rows, columns)
    outside, inside = (getattr(module, name, None) for name in ("out_features", "in_features"))
    if not (isinstance(outside, int) and isinstance(inside, int)):
        raise ModelUnsupported(f"a {type(module).__name__} is neither a matrix nor a linear map that could be asked")
    return outside, inside


def _computes_in(module: nn.Module) -> tuple[torch.dtype, torch.device]:
    """The dtype and the device that a module's inputs have."""
    tensors = [*module.parameters(), *module.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    stated = getattr(module, "compute_dtype", None)
    if isinstance(stated, torch.dtype):
        return stated, device
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32), device


@contextmanager
def _without_biases(module: nn.Module) -> Iterator[None]:
    """Zeros in place of every bias inside, for the time of the block."""
    held: list[tuple[nn.Module, Any]] = []
    try:
        for part in module.modules():
            bias = part._parameters.get("bias")
            if bias is not None:
                held.append((part, bias))
                part._parameters["bias"] = nn.Parameter(torch.zeros_like(bias), requires_grad=False)
        yield
    finally:
        for part, bias in held:
            part._parameters["bias"] = bias
