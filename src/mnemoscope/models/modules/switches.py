"""Global switches that affect numbers: held at known values around this package's own work, and restored.

A user who sets `torch.set_float32_matmul_precision("medium")` for training must not get other coefficients. Switches
that a library reads only once, at its start, cannot be held: they are refused if they make products coarse
(`refuse_coarse_products`), and recorded in the plan if they change last digits (`kernels_chosen`). docs/decisions.md
lists every switch considered, including those left alone.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn

from mnemoscope.errors import Forked, OptionError
from mnemoscope.foundation.forks import lacks_threads, refuse_forked
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

_PRECISION = "fp32_precision"
_PRODUCTS: tuple[Any, ...] = (
    torch.backends,
    cudnn,
    cudnn.conv,  # type: ignore[attr-defined]
    cudnn.rnn,
    cuda.matmul,
    mkldnn.matmul,  # type: ignore[attr-defined]
    mkldnn.conv,  # type: ignore[attr-defined]
    mkldnn.rnn,  # type: ignore[attr-defined]
)
"""The owners of a precision of float32 products, each before those that follow it if they are `none`. Not mkldnn as a
whole, whose setter sets that of all backends (torch 2.13); each of its kinds of product has its own."""
_FLAGS: tuple[tuple[Any, str, bool], ...] = (
    (cuda.matmul, "allow_fp16_reduced_precision_reduction", True),
    (cuda.matmul, "allow_bf16_reduced_precision_reduction", True),
    (cuda.matmul, "allow_fp16_accumulation", False),
    (mkldnn, "enabled", True),
)
_KERNELS: tuple[tuple[Callable[[], bool], Callable[[bool], None], bool], ...] = (
    (cuda.flash_sdp_enabled, cuda.enable_flash_sdp, True),
    (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, True),
    (cuda.math_sdp_enabled, cuda.enable_math_sdp, True),
    (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, True),
    (cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp, False),
)


@contextmanager
def steady() -> Iterator[None]:
    """Holds every switch at the value with which numbers are defined. Global ones are restored as the last thread
    leaves.
    """
    with ExitStack() as kept:
        if lacks_threads("torch"):
            torch.set_num_threads(1)
        kept.enter_context(_hold_process())
        _hold_thread(kept)
        yield


def set_threads(count: int | None) -> None:
    """Sets torch's thread count, None: unchanged."""
    refuse_forked()
    forked = lacks_threads("torch")
    if forked and count is not None and count > 1:
        raise Forked(
            f"process {os.getpid()} was forked from one that had PyTorch, and has 1 of the {count} threads wanted;"
            " start it with multiprocessing.get_context('spawn') or 'forkserver'"
        )
    # Setting it also keeps the matrix library from using fewer.
    torch.set_num_threads(1 if forked else count or torch.get_num_threads())


@shared_change
def _hold_process() -> Iterator[None]:
    """Holds the global switches; restores the changed ones."""
    with ExitStack() as kept:

        def change(set_to: Callable[[Any], object], now: object, wanted: object) -> None:
            if now != wanted:
                set_to(wanted)
                kept.callback(set_to, now)

        change(torch.set_default_dtype, torch.get_default_dtype(), torch.float32)
        for owner, name, wanted in _FLAGS:
            change(partial(setattr, owner, name), getattr(owner, name), wanted)
        for get, set_, wanted in _KERNELS:
            change(set_, get(), wanted)
        _hold_products(kept)
        yield


def _hold_products(kept: ExitStack) -> None:
    """Makes float32 products use float32. A part set to `none` follows the whole, so its value shows only once the
    whole is `none`. The older switch (`float32_matmul_precision`) is set as well, since torch raises where the two
    differ; if the user made them differ, only the new one is restored.
    """
    if all(getattr(each, _PRECISION) == "ieee" for each in _PRODUCTS):
        return
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    previous = []
    for each in _PRODUCTS:
        previous.append((each, getattr(each, _PRECISION)))
        setattr(each, _PRECISION, "none")
    torch.set_float32_matmul_precision("highest")
    for each in _PRODUCTS:
        setattr(each, _PRECISION, "ieee")

    def put_back() -> None:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for each, precision in previous:
            setattr(each, _PRECISION, precision)

    kept.callback(put_back)


def _hold_thread(kept: ExitStack) -> None:
    for device in ("cpu", torch.get_default_device().type, "cuda"):
        if device != "meta" and torch.is_autocast_enabled(device):
            kept.enter_context(torch.autocast(device, enabled=False))
    if torch.get_default_device().type != "cpu":
        kept.enter_context(torch.device("cpu"))
    tiny = torch.full((), 1e-40, dtype=torch.float32, device="cpu")
    if tiny.mul(0.5).item() == 0.0 and torch.set_flush_denormal(False):
        kept.callback(torch.set_flush_denormal, True)


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
