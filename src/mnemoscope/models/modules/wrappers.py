"""Wrappers of a model, or of a part of it, that do not change its function: unwrapped, or switched off.

A compiled part runs uncompiled while the package reads it, since nothing inside compiled code can be watched. Wrappers
that share a model's weights among processes are refused: each process sees only its own part.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import masking_utils

from mnemoscope.errors import ModelUnsupported

_INSIDE = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Classes of torch that wrap a model, and the attribute that holds it."""
_IN_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")
_SHARDING = {"FSDPModule", "FullyShardedDataParallel"}

_changing = Lock()
_running: list[Any] = []
"""The first active caller's change, to be undone; and one entry for each other."""
_LOOK = "find_packed_sequence_indices"
_unpacked: list[int] = []
"""The threads whose rows are one sequence each."""


def unwrap(source: Any) -> Any:
    while isinstance(source, nn.Module) and type(source).__name__ in _INSIDE:
        source = getattr(source, _INSIDE[type(source).__name__])
    return source


def name_inside(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _IN_NAMES)


def check_whole(model: nn.Module) -> None:
    """Raises ModelUnsupported if processes share the weights (FSDP, tensor parallelism)."""
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if kinds & _SHARDING or any(getattr(weight, "device_mesh", None) is not None for weight in model.parameters()):
        raise ModelUnsupported(
            "the model's weights are shared out among processes (FSDP, tensor parallelism); load it in one process"
        )


@contextmanager
def run_uncompiled() -> Iterator[None]:
    """Makes compiled code run uncompiled; the last of all threads to leave restores it."""
    with _changing:
        _running.append(None if _running else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _changing:
            if len(_running) == 1:
                _running[0].__exit__(None, None, None)
            _running.pop()


@contextmanager
def run_unpacked() -> Iterator[None]:
    """Tells transformers that every row is one sequence, in this thread: its own check stalls a graphics card."""
    look = getattr(masking_utils, _LOOK, None)
    if look is None:  # a version without that function
        yield
        return
    with _changing:
        if not _unpacked:
            setattr(masking_utils, _LOOK, _UnpackedMasking(look))
        _unpacked.append(get_ident())
    try:
        yield
    finally:
        with _changing:
            _unpacked.remove(get_ident())
            if not _unpacked:
                setattr(masking_utils, _LOOK, getattr(masking_utils, _LOOK).look)


class _UnpackedMasking:
    """No packed sequences in the registered threads; the library's own check in others."""

    def __init__(self, look: Callable[[Tensor], Tensor | None]) -> None:
        self.look = look

    def __call__(self, position_ids: Tensor) -> Tensor | None:
        return None if get_ident() in _unpacked else self.look(position_ids)
