"""Wrappers of a model, or of a part of it, that do not change its function: unwrapped, or switched off.

A compiled part runs uncompiled while the package reads it, since nothing inside compiled code can be watched. Wrappers
that share a model's weights among processes are refused: each process sees only its own part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import masking_utils

from mnemoscope.errors import ModelUnsupported
from mnemoscope.foundation.shared_change import shared_change

_INSIDE = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Classes of torch that wrap a model, and the attribute that holds it."""
_IN_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")
_SHARDING = {"FSDPModule", "FullyShardedDataParallel"}
_LOOK = "find_packed_sequence_indices"
"""A function inside transformers: none of its models takes an argument that leaves this check out."""


def unwrap(source: Any) -> Any:
    while isinstance(source, nn.Module) and type(source).__name__ in _INSIDE:
        source = getattr(source, _INSIDE[type(source).__name__])
    return source


def name_inside(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _IN_NAMES)


def check_whole(model: nn.Module) -> None:
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if kinds & _SHARDING or any(getattr(weight, "device_mesh", None) is not None for weight in model.parameters()):
        raise ModelUnsupported(
            "the model's weights are shared out among processes (FSDP, tensor parallelism); load it in one process"
        )


@shared_change
def run_uncompiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def run_unpacked() -> Iterator[None]:
    """Tells transformers that every row is one sequence, in this thread: its own check stalls a graphics card."""
    with _unpacked_threads() as threads:
        threads.append(get_ident())
        try:
            yield
        finally:
            threads.remove(get_ident())


@shared_change
def _unpacked_threads() -> Iterator[list[int]]:
    """The threads without packed sequences; the library's own check runs in others."""
    look: Any = getattr(masking_utils, _LOOK, None)
    threads: list[int] = []

    def look_elsewhere(position_ids: Tensor) -> Tensor | None:
        return None if get_ident() in threads else look(position_ids)

    if look is None:  # a version without that function
        yield threads
        return
    setattr(masking_utils, _LOOK, look_elsewhere)
    try:
        yield threads
    finally:
        setattr(masking_utils, _LOOK, look)
