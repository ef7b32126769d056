"""The linear maps of a model as matrices: read if stored plainly, else probed.

A quantised or adapted layer (torchao, bitsandbytes, LoRA and other adapters) stores no matrix that equals its function.
Its outputs for all unit vectors do (definitions.md section 7.4): so no knowledge of a format is needed, and the
load-time proof checks the result as for every model.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.budget import BUDGET, rows_within
from mnemoscope.models.modules.offloading import device_of_module, weight_of
from mnemoscope.models.modules.quiet import silence
from mnemoscope.models.modules.wrappers import name_inside, run_uncompiled

_LINEAR = 1.5e-2
"""Largest relative distance of a map from its matrix, in units of the summed terms. Rounding to bfloat16, twice as in a
LoRA layer, gives 8e-3; eight bits per row of inputs, one entry of which is a hundred times the rest, 3e-2."""
_ONE_LARGE = (1.0, 8.0, 30.0, 100.0)
_SMALL = 0.05
"""Keeps inputs at 6 or below; LLM.int8 does not round larger ones."""
_EXACT = 1e-5
"""Largest distance between the sum of two outputs and the output of the sum for products in float32."""


@dataclass(frozen=True)
class LinearMap:
    """Rows `first .. first + count` of a linear module's outputs. `transposed`: stored [in, out] (GPT-2's Conv1D)."""

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
        count = self.count // 2
        first, second = (replace(self, first=start, count=count) for start in (0, count))
        return (first, second) if order == ("gate", "up") else (second, first)

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the matrix, without making it."""
        return self.count, _sizes(self.module, self.transposed)[1]

    @property
    def is_probed(self) -> bool:
        return not is_plain(self.module)

    @property
    def precision(self) -> torch.dtype:
        return precision_of(self.module)

    def weight(self) -> Tensor:
        """The matrix [out, in], without gradients: a view of the module's own, or probed anew."""
        if self.is_probed:
            matrix = probe(self.module)
        else:
            matrix = weight_of(self.module, "weight").detach()
            matrix = matrix.T if self.transposed else matrix
        return matrix[self.first : self.first + self.count]

    def bias(self) -> Tensor | None:
        """The bias [out], without gradients, or None: a view of the module's own, or the output for zeros."""
        if self.is_probed:
            bias = probe_bias(self.module)
        else:
            has_one = isinstance(getattr(self.module, "bias", None), Tensor)
            bias = weight_of(self.module, "bias").detach() if has_one else None
        return None if bias is None else bias[self.first : self.first + self.count]

    def __call__(self, inputs: Tensor) -> Tensor:
        matrix, bias = self.weight(), self.bias()
        given = nn.functional.linear(inputs.to(matrix.dtype), matrix, None if bias is None else bias.to(matrix.dtype))
        return given.to(inputs.dtype)


def is_plain(module: nn.Module) -> bool:
    """Whether the module multiplies by its `weight` as it is."""
    weight: Any = getattr(module, "weight", None)
    if type(weight) not in (Tensor, nn.Parameter) or weight.dim() != 2 or not weight.is_floating_point():
        return False
    if is_of_adapters(module):
        return False
    # A hand-written adapter has parameters beside matrix and bias.
    names = [name_inside(name) for name, _ in module.named_parameters()] if module._modules else module._parameters
    return all(name in ("weight", "bias") or name.startswith("parametrizations.") for name in names)


def is_of_adapters(thing: object) -> bool:
    return type(thing).__module__.partition(".")[0] == "peft"


def matrix_of(module: nn.Module) -> Tensor:
    """The module's matrix: as stored if it is plain, else [out, in], probed."""
    return weight_of(module, "weight") if is_plain(module) else probe(module)


def rows_of(module: nn.Module) -> int:
    """How many rows `matrix_of` has, without reading it."""
    return _sizes(module, False)[0]


def computes_in(module: nn.Module) -> tuple[torch.dtype, torch.device]:
    weight: Tensor = module.weight if is_plain(module) else probe(module)  # type: ignore[assignment]
    return weight.dtype, device_of_module(module) if weight.is_meta else weight.device


@torch.inference_mode()
def probe(module: nn.Module) -> Tensor:
    """A linear module's outputs for all unit vectors, `[out, in]`, without its biases."""
    if any(weight.is_meta for weight in module.parameters()):
        raise ModelUnsupported(
            f"a {type(module).__name__}, whose matrix is packed or adapted, is kept on the CPU or on disk while it is"
            " not used, where it cannot be read; give the model a device that holds it"
        )
    outside, inside = _sizes(module, False)
    dtype, device = _asked_in(module, inside)
    at_once = rows_within(BUDGET.unit_vectors, max(inside, outside))
    # Inputs with entries of very different size, which eight bits per row cannot represent.
    uneven = torch.randn(2 * len(_ONE_LARGE), inside, generator=torch.Generator().manual_seed(0))
    uneven[::2, 0], uneven[1::2, -1] = torch.tensor(_ONE_LARGE), -torch.tensor(_ONE_LARGE)
    checked = (uneven * _SMALL).to(device=device, dtype=dtype)
    rows = []
    with _without_biases(module):
        for start in range(0, inside, at_once):
            units = torch.eye(min(at_once, inside - start), inside, dtype=dtype, device=device).roll(start, 1)
            # The first call includes the checked inputs, since some layers unpack their weights for every call.
            rows.append(_ask(module, units if start else torch.cat([checked, units])))
    made = rows[0] if len(rows) == 1 else torch.cat(rows)
    if made.shape != (len(checked) + inside, outside):
        raise ModelUnsupported(f"a {type(module).__name__} returns {made.shape[-1]} numbers, but states {outside}")
    given, matrix = made[: len(checked)], made[len(checked) :].T
    _check_linear(module, matrix, checked, given)
    return matrix


@torch.inference_mode()
def probe_bias(module: nn.Module) -> Tensor | None:
    """A linear module's output for zeros, `[out]`; None if it is zero."""
    inside = _sizes(module, False)[1]
    dtype, device = _asked_in(module, inside)
    given = _ask(module, torch.zeros(1, inside, dtype=dtype, device=device))[0]
    return given if bool(given.any()) else None


@torch.inference_mode()
def precision_of(module: nn.Module) -> torch.dtype:
    """The dtype in which a linear module multiplies: its matrix's, or inferred from the rounding of sums."""
    if is_plain(module):
        return module.weight.dtype  # type: ignore[return-value]  # without fetching it
    inside = _sizes(module, False)[1]
    dtype, device = _asked_in(module, inside)
    if dtype != torch.float32:
        return dtype
    one, other = torch.randn(2, 8, inside, generator=torch.Generator().manual_seed(0)).to(device)
    with _without_biases(module):
        whole, parts = _ask(module, one + other), _ask(module, one) + _ask(module, other)
    apart = float((whole - parts).norm() / whole.norm().clamp_min(1e-30))
    if apart <= _EXACT:
        return torch.float32
    return torch.float16 if apart <= 100 * _EXACT else torch.bfloat16


def _ask(module: nn.Module, inputs: Tensor) -> Tensor:
    # Calls `forward` directly, so that hooks on the model do not see it. A layer that rounds its input would log that
    # repeatedly, and is refused in one line.
    with silence(logging.getLogger("bitsandbytes")), run_uncompiled():
        given = module.forward(inputs)
    if not isinstance(given, Tensor):
        raise ModelUnsupported(f"a {type(module).__name__} does not return one tensor, so it is not a linear map")
    return given


def _check_linear(module: nn.Module, matrix: Tensor, inputs: Tensor, given: Tensor) -> None:
    exact, wide = matrix.float().T, inputs.float()
    wrong = (given.float() - wide @ exact).square().mean(1)
    size = wide.square() @ (torch.linalg.vector_norm(exact, dim=1).square() / exact.shape[1])
    if not bool((wrong <= _LINEAR**2 * size.clamp_min(1e-30)).all()):
        raise ModelUnsupported(
            f"a {type(module).__name__} is not linear in what goes into it (its format quantises that, too);"
            " --dequantize widens the weights at load"
        )


def _sizes(module: nn.Module, transposed: bool) -> tuple[int, int]:
    """Outputs and inputs of a linear module: by its matrix, its attributes, or the first fitting map inside."""
    if is_plain(module):
        rows, columns = module.weight.shape  # type: ignore[misc]
        return (columns, rows) if transposed else (rows, columns)
    stated = stated_sizes(module)
    if stated is not None:
        return stated
    for inside in {sizes: None for part in module.modules() if (sizes := stated_sizes(part)) is not None}:
        with suppress(RuntimeError, TypeError, ValueError, ModelUnsupported), torch.inference_mode():
            dtype, device = _asked_in(module, inside[1])
            if _ask(module, torch.zeros(1, inside[1], dtype=dtype, device=device)).shape == (1, inside[0]):
                return inside
    raise ModelUnsupported(f"a {type(module).__name__} is neither a matrix nor a linear map that can be evaluated")


def stated_sizes(module: nn.Module) -> tuple[int, int] | None:
    """The outputs and inputs in a module's attributes: torch's, or those of older packed layers."""
    for names in (("out_features", "in_features"), ("outfeatures", "infeatures")):
        outside, inside = (getattr(module, name, None) for name in names)
        if isinstance(outside, int) and isinstance(inside, int):
            return outside, inside
    return None


def _asked_in(module: nn.Module, inside: int) -> tuple[torch.dtype, torch.device]:
    """The dtype in which a module takes inputs (its parameters', float32, or its scales'), and their device."""
    parameters, buffers = list(module.parameters()), list(module.buffers())
    device = next((tensor.device for tensor in (*parameters, *buffers)), torch.device("cpu"))
    stated = getattr(module, "compute_dtype", None)
    if isinstance(stated, torch.dtype):
        return stated, device
    dtype, scales = (next((t.dtype for t in some if t.is_floating_point()), None) for some in (parameters, buffers))
    if dtype is not None or scales in (None, torch.float32):
        return dtype or torch.float32, device
    with suppress(RuntimeError):
        _ask(module, torch.zeros(1, inside, device=device))
        return torch.float32, device
    return scales or torch.float32, device


@contextmanager
def _without_biases(module: nn.Module) -> Iterator[None]:
    """Replaces every bias inside, parameter or buffer, by zeros inside the block."""
    stores: list[dict[str, Any]] = [store for part in module.modules() for store in (part._parameters, part._buffers)]
    held = [(store, store["bias"]) for store in stores if store.get("bias") is not None]
    try:
        for store, bias in held:
            store["bias"] = torch.zeros_like(bias)
        yield
    finally:
        for store, bias in held:
            store["bias"] = bias
