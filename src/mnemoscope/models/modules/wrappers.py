"""What is put around a model, or a part of it, without changing what it computes: looked through, or switched off.

A compiled part runs as it was written while the package reads it, since nothing inside compiled code can be watched.
What shares a model's weights out among processes is refused: one process sees only its own part of them.
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
"""Classes of torch that stand for the model inside them, and the name that it has there."""
_IN_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")
_SHARDING = {"FSDPModule", "FullyShardedDataParallel"}

_changing = Lock()
_running: list[Any] = []
"""What the first of those that run now changed, to be changed back; and one more entry for each of the others."""
_LOOK = "find_packed_sequence_indices"
"""By which transformers looks whether sequences lie behind one another in a row."""
_unpacked: list[int] = []
"""The threads whose rows are one sequence each."""


def unwrap(source: Any) -> Any:
    """The model inside what torch puts around a whole one; anything else as it is."""
    while isinstance(source, nn.Module) and type(source).__name__ in _INSIDE:
        source = getattr(source, _INSIDE[type(source).__name__])
    return source


def name_inside(name: str) -> str:
    """A weight's name as it is without wrappers around parts of its model."""
    return ".".join(part for part in name.split(".") if part not in _IN_NAMES)


def check_whole(model: nn.Module) -> None:
    """Raises ModelUnsupported where processes share the weights (FSDP, tensor parallelism)."""
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if kinds & _SHARDING or any(getattr(weight, "device_mesh", None) is not None for weight in model.parameters()):
        raise ModelUnsupported(
            "the model's weights are shared out among processes (FSDP, tensor parallelism); load it in one process"
        )


@contextmanager
def run_uncompiled() -> Iterator[None]:
    """Compiled code runs as it was written; the last of all threads to leave puts things back."""
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
    """Transformers takes it from us that every row is one sequence, in this thread.

    It looks at the numbers for it, once in a forward, and on a graphics card a look waits until all is done.
    """
    look = getattr(masking_utils, _LOOK, None)
    if look is None:  # another version, which has no such function
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
    """No packed sequences in the threads that said so; what the library finds in others."""

    def __init__(self, look: Callable[[Tensor], Tensor | None]) -> None:
        self.look = look

    def __call__(self, position_ids: Tensor) -> Tensor | None:
        return None if get_ident() in _unpacked else self.look(position_ids)
