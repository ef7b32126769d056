"""Global switches that change a product in float32: held around this package's own work, and restored.

A user who sets `torch.set_float32_matmul_precision("medium")` for training must not get other coefficients. Switches
that a library reads only once, at its start, cannot be held: they are refused if they make products coarse
(`refuse_coarse_products`), and recorded in the plan if they change last digits (`kernels_chosen`). docs/decisions.md
lists every switch considered, including those left alone.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn

from mnemoscope.errors import Forked, OptionError
from mnemoscope.foundation.processes import is_forked, refuse_forked
from mnemoscope.foundation.shared_change import shared_change

_COARSE = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "DNNL_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "NVIDIA_TF32_OVERRIDE": ("", "0"),
}
"""Variables by which libraries multiply float32 in fewer bits, whatever is set later; and their harmless values."""
IN_PLAN = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_LINALG_PREFER_CUSOLVER",
)
"""Variables that choose among kernels, whose last digits differ."""

_PRODUCTS: tuple[Any, ...] = (
    torch.backends,
    cudnn,
    cudnn.conv,  # type: ignore[attr-defined]
    cuda.matmul,
    mkldnn.matmul,  # type: ignore[attr-defined]
    mkldnn.conv,  # type: ignore[attr-defined]
)
"""The owners of a precision of float32 products, each before those that follow it if they are `none`. Not mkldnn as a
whole, whose setter sets that of all backends (torch 2.13)."""


@contextmanager
def steady() -> Iterator[None]:
    """Holds the switches that change a float32 product, and what a bare constructor makes. Global ones are restored as
    the last thread leaves.
    """
    with ExitStack() as kept:
        if is_forked("torch"):
            torch.set_num_threads(1)
        kept.enter_context(_hold_process())
        default = torch.get_default_device().type
        for device in ("cpu", default, "cuda"):
            if device != "meta" and torch.is_autocast_enabled(device):
                kept.enter_context(torch.autocast(device, enabled=False))
        if default != "cpu":
            kept.enter_context(torch.device("cpu"))
        yield


@shared_change
def _hold_process() -> Iterator[None]:
    """The older switch (`float32_matmul_precision`) is set as well, since torch raises where the two differ; if the
    user made them differ, only the new one is restored.
    """
    dtype, precisions = torch.get_default_dtype(), []
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    for each in _PRODUCTS:  # the value of a part that follows the whole shows only once the whole is `none`
        precisions.append(each.fp32_precision)
        each.fp32_precision = "none"
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    for each in _PRODUCTS:
        each.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for each, precision in zip(_PRODUCTS, precisions, strict=True):
            each.fp32_precision = precision


def set_threads(count: int | None) -> None:
    """Sets torch's thread count, None: unchanged."""
    refuse_forked()
    forked = is_forked("torch")
    if forked and count is not None and count > 1:
        raise Forked(
            f"process {os.getpid()} was forked from one that had PyTorch, and has 1 of the {count} threads wanted;"
            " start it with multiprocessing.get_context('spawn') or 'forkserver'"
        )
    # Setting it also keeps the matrix library from using fewer.
    torch.set_num_threads(1 if forked else count or torch.get_num_threads())


def refuse_coarse_products(environment: Mapping[str, str] = os.environ) -> None:
    """Raises OptionError if a variable makes a library multiply float32 in fewer bits."""
    for name, exact in _COARSE.items():
        if environment.get(name, "").upper() not in exact:
            raise OptionError(
                f"{name}={environment[name]} makes products of float32 coarse, and cannot be changed once a library has"
                " read it; start the process without it"
            )


def kernels_chosen(environment: Mapping[str, str] = os.environ) -> str | None:
    """The environment's choices of kernels, `NAME=value` joined by spaces; or None."""
    return " ".join(f"{name}={environment[name]}" for name in IN_PLAN if environment.get(name)) or None
