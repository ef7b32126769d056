"""Switches of the process that decide numbers: held at known values around this package's own work, and put back.

Somebody who sets `torch.set_float32_matmul_precision("medium")` for training must not get other coefficients for it.
What cannot be held since a library reads it once, as it starts, is refused where it makes products coarse
(`refuse_coarse_products`), and stands in the plan where it moves last digits (`environment`). docs/decisions.md lists
every switch that was looked at, those that are left alone included.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

import torch
from torch.backends import cuda, cudnn, mkldnn

from mnemoscope.errors import Forked, OptionError
from mnemoscope.foundation.forks import lacks_threads, refuse_forked

_COARSE = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "DNNL_DEFAULT_FPMATH_MODE": ("", "STRICT"),
    "NVIDIA_TF32_OVERRIDE": ("", "0"),
}
"""Variables by which libraries multiply float32 in fewer bits, whatever they are told later; and when they do not."""
IN_PLAN = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG", "DISABLE_ADDMM_CUDA_LT",
    "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_LINALG_PREFER_CUSOLVER",
)  # fmt: skip
"""Variables that choose among kernels, whose last digits differ."""

_PRECISION = "fp32_precision"
_PRODUCTS: tuple[Any, ...] = (
    torch.backends, cudnn, cudnn.conv, cudnn.rnn, cuda.matmul,  # type: ignore[attr-defined]
    mkldnn.matmul, mkldnn.conv, mkldnn.rnn,  # type: ignore[attr-defined]
)  # fmt: skip
"""What has a precision of products in float32, each before those that follow it where they say `none`.

Not mkldnn as a whole, whose setter sets that of all backends (torch 2.13); each of its kinds of product has its own."""
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
"""Those of scaled_dot_product_attention, as torch starts with them."""

_changing = Lock()
_inside: list[Callable[[], None]] = []
"""What puts the process's switches back, for the first of those inside; and one more entry for each of the others."""


@contextmanager
def steady() -> Iterator[None]:
    """Holds every switch at the value that this package's numbers are defined with; puts each back.

    Those of the whole process are put back as the last thread leaves, others as this one does.
    """
    with ExitStack() as kept:
        if lacks_threads("torch"):
            torch.set_num_threads(1)
        with _changing:
            put_back = _hold_process()
            _inside.append(put_back if not _inside else _nothing)
        kept.callback(_leave)
        _hold_thread(kept)
        yield


def set_threads(count: int | None) -> None:
    """Lets torch work with so many threads, as many as it has where None; a forked process has one.

    Raises Forked for more than one there, which torch would wait for without an end, and where no tables can be read.
    """
    refuse_forked()
    forked = lacks_threads("torch")
    if forked and count is not None and count > 1:
        raise Forked(
            f"process {os.getpid()} was forked from one that had PyTorch, and has 1 of the {count} threads wanted;"
            " start it with multiprocessing.get_context('spawn') or 'forkserver'"
        )
    # Setting it also forbids the matrix library to use fewer when it likes.
    torch.set_num_threads(1 if forked else count or torch.get_num_threads())


def _leave() -> None:
    with _changing:
        own = _inside.pop()
        if not _inside:
            own()


def _nothing() -> None:
    pass


def _hold_process() -> Callable[[], None]:
    """Sets the switches of the process; returns what puts back those that were otherwise."""
    undo: list[Callable[[], object]] = []

    def change(set_to: Callable[[Any], object], now: object, wanted: object) -> None:
        if now != wanted:
            set_to(wanted)
            undo.append(lambda: set_to(now))

    change(torch.set_default_dtype, torch.get_default_dtype(), torch.float32)
    for owner, name, wanted in _FLAGS:
        change(lambda value, owner=owner, name=name: setattr(owner, name, value), getattr(owner, name), wanted)  # type: ignore[misc]
    for asked, told, wanted in _KERNELS:
        change(told, asked(), wanted)
    _hold_products(undo)

    def put_back() -> None:
        for each in reversed(undo):
            each()

    return put_back


def _hold_products(undo: list[Callable[[], object]]) -> None:
    """Products in float32 are made in float32.

    A part that says `none` follows the whole, so its own word is known only once the whole says `none`, too. The older
    name of the same switch (`float32_matmul_precision`) is told as well, since torch refuses to answer where the two
    differ; where the user has made them differ, only the new one is put back.
    """
    if all(getattr(each, _PRECISION) == "ieee" for each in _PRODUCTS):
        return
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    said = []
    for each in _PRODUCTS:
        said.append((each, getattr(each, _PRECISION)))
        setattr(each, _PRECISION, "none")
    torch.set_float32_matmul_precision("highest")
    for each in _PRODUCTS:
        setattr(each, _PRECISION, "ieee")

    def put_back() -> None:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for each, precision in said:
            setattr(each, _PRECISION, precision)

    undo.append(put_back)


def _hold_thread(kept: ExitStack) -> None:
    """The switches that every thread has of its own: autocast, the default device, numbers too small to be normal."""
    for device in ("cpu", torch.get_default_device().type, "cuda"):
        if device != "meta" and torch.is_autocast_enabled(device):
            kept.enter_context(torch.autocast(device, enabled=False))
    if torch.get_default_device().type != "cpu":
        kept.enter_context(torch.device("cpu"))
    tiny = torch.full((), 1e-40, dtype=torch.float32, device="cpu")
    if tiny.mul(0.5).item() == 0.0 and torch.set_flush_denormal(False):
        kept.callback(torch.set_flush_denormal, True)


def refuse_coarse_products(environment: Mapping[str, str] = os.environ) -> None:
    """Raises OptionError where a variable makes a library multiply float32 in fewer bits."""
    for name, exact in _COARSE.items():
        if environment.get(name, "").upper() not in exact:
            raise OptionError(
                f"{name}={environment[name]} makes products of float32 coarse, and cannot be changed once a library has"
                " read it; start the process without it"
            )


def kernels_chosen(environment: Mapping[str, str] = os.environ) -> str | None:
    """What the environment says of the kernels that are taken, `NAME=value` joined by spaces; None where nothing."""
    return " ".join(f"{name}={environment[name]}" for name in IN_PLAN if environment.get(name)) or None
