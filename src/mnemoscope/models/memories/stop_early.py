"""Ends a forward pass early, by an exception that carries the input of the module reached."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mnemoscope.models.memories.feed_forward import FeedForward


class Abandoned(Exception):
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


Hook = Callable[[nn.Module, tuple[Any, ...]], None]


def abandon_in(thread: int) -> Hook:
    """A hook that ends a forward of this thread; other threads may run the same model meanwhile."""

    def abandon(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if get_ident() == thread:
            raise Abandoned(inputs[0])

    return abandon


def after_coefficients(ffn: FeedForward, abandon: Hook) -> RemovableHandle:
    """Calls the hook once a layer's coefficients were read: at the down-projection, or at an experts layer's end."""
    if ffn.numbering.routed is None:
        return ffn.exits[-1].register_forward_pre_hook(abandon)
    return ffn.exits[-1].register_forward_hook(lambda module, inputs, _: abandon(module, inputs))
