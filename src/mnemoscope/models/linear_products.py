"""Products with the matrices of linear maps, by the faster of the two libraries that PyTorch holds for processors.

PyTorch multiplies matrices in single precision by MKL, which leaves AVX-512 unused on processors of AMD. oneDNN, the
library that PyTorch takes there for half precision alone, uses it; without AVX-512 it is the slower one (LOG.md has the
figures). Both add up in single precision; the last bits differ. Which one it is follows from the processor and the
product's shape, so the same products give the same bits. On other processors, and where oneDNN is not built in,
everything stays PyTorch's own.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import pytorch_utils

from mnemoscope.models.offloading import take_kinds

_LEAST = 1 << 27
"""Numbers times numbers of a product from which on: a new shape takes oneDNN a third of a millisecond to prepare."""
_SLOWER_THERE, _UNUSED_THERE = "AuthenticAMD", "AVX512"
_CAPACITIES, _SHAPES_KEPT = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "32"
"""How many shapes oneDNN and PyTorch keep prepared: those of some batches that are multiplied side by side."""

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Rows `[..., in]`, a matrix `[out, in]` and a bias `[out]` or None to rows `[..., out]`."""


def use_faster_products(network: nn.Module) -> None:
    """Lets the linear maps of a network on a CPU multiply by the faster library, where no gradient is asked for."""
    if faster_product() is not None:
        take_kinds(network, _KINDS)


def write_product(rows: Tensor, matrix: Tensor, *, out: Tensor) -> None:
    """Writes the products of `rows [row, in]` with a matrix `[out, in]` to `out [row, out]`, by the faster library."""
    product = _product_for(rows, matrix)
    if product is None:
        torch.mm(rows, matrix.T, out=out)
    else:
        out.copy_(product(rows, matrix, None))


@cache
def faster_product() -> Product | None:
    """The product of oneDNN, where that is faster and does what it should; None elsewhere."""
    both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not both or vendor() != _SLOWER_THERE or instructions() != _UNUSED_THERE:
        return None
    for capacity in _CAPACITIES:  # read as the first product is made; a shape is half a megabyte, and batches differ
        os.environ.setdefault(capacity, _SHAPES_KEPT)
    numbers = torch.linspace(-1, 2, 22, dtype=torch.float32, device="cpu")
    rows, matrix, bias = numbers[:12].view(3, 4), numbers[12:20].view(2, 4), numbers[20:]
    try:
        with torch.inference_mode():
            found = [_by_onednn(rows, one, bias) for one in (matrix, matrix.T.contiguous().T)]
    except (AttributeError, RuntimeError, TypeError):  # PyTorch calls it by a name that it may change
        return None
    wanted = nn.functional.linear(rows, matrix, bias)
    return _by_onednn if all(torch.allclose(one, wanted, rtol=1e-5, atol=1e-5) for one in found) else None


@cache
def vendor() -> str:
    """Who made this machine's processor, as Linux tells; empty where it does not."""
    try:
        stated = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = (line.partition(":") for line in stated.splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "vendor_id"), "")


def instructions() -> str:
    """The widest instructions that PyTorch uses on this processor: "AVX2", say."""
    return torch.backends.cpu.get_cpu_capability()


def _by_onednn(rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, bias, "none", [], "")
    return product


def _product_for(rows: Tensor, matrix: Tensor) -> Product | None:
    """The product of oneDNN, where it is the faster one for these rows and this matrix `[out, in]`; else None."""
    pays = (
        rows.dtype == matrix.dtype == torch.float32
        and rows.device.type == matrix.device.type == "cpu"
        and rows.numel() * matrix.shape[0] >= _LEAST
        and not torch.is_grad_enabled()
    )
    return faster_product() if pays else None


# They keep their names, by which kinds of maps are told.
class Linear(nn.Linear):
    """See `use_faster_products`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        product = _product_for(input, self.weight)
        return super().forward(input) if product is None else product(input, self.weight, self.bias)


class Conv1D(pytorch_utils.Conv1D):
    """See `use_faster_products`; its matrix is `[in, out]`."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        product = _product_for(x, self.weight.T)
        if product is None:
            return super().forward(x)  # type: ignore[no-any-return,no-untyped-call]
        return product(x, self.weight.T, self.bias)


_KINDS: dict[type, type[nn.Module]] = {nn.Linear: Linear, pytorch_utils.Conv1D: Conv1D}
