"""Taps: forward hooks that see or replace the tensors of modules, and are removed together, also after an exception."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NoReturn, Self, final

from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.modules.observed import UNNAMED, first, stream_of

_INSIDE: ContextVar[frozenset[object]] = ContextVar("inside", default=frozenset())
"""The marks of the own taps within whose blocks this coroutine runs, or was begun."""


class Reached(Exception):
    """Ends a forward at a tap."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def reach(tensor: Tensor) -> NoReturn:
    raise Reached(tensor)


@final
class Taps(ExitStack):
    """Taps that act in the forwards of every thread, or only (`own_thread`) in those of the thread that makes them, and
    there not in other coroutines, which run while the one that entered the taps waits.
    """

    def __init__(self, *, own_thread: bool = False) -> None:
        super().__init__()
        self._thread, self._mark = get_ident() if own_thread else None, object()

    def __enter__(self) -> Self:
        if self._thread is not None:
            _INSIDE.set(_INSIDE.get() | {self._mark})
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        # Not by a token of the variable, which another context refuses: a block may be left in another one.
        _INSIDE.set(_INSIDE.get() - {self._mark})
        super().__exit__(*error)

    def act(self) -> bool:
        return self._thread is None or (self._thread == get_ident() and self._mark in _INSIDE.get())

    def enters(self, module: nn.Module, tap: Callable[[Tensor], Tensor | None]) -> None:
        """Calls `tap` with a module's first input, which its result, if any, replaces."""

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not self.act():
                return None
            if not inputs:
                raise ModelUnsupported("a linear map or norm is called by keyword, so its input cannot be tapped")
            changed = tap(inputs[0])
            return None if changed is None else (changed, *inputs[1:])

        self.enter_context(module.register_forward_pre_hook(hook))

    def leaves(self, module: nn.Module, tap: Callable[[Tensor], Tensor | None]) -> None:
        """Calls `tap` with a module's output, or the first of several, which its result, if any, replaces."""

        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            changed = tap(first(output)) if self.act() else None
            return changed if changed is None or isinstance(output, Tensor) else (changed, *output[1:])

        self.enter_context(module.register_forward_hook(hook))

    def begins(self, block: nn.Module, tap: Callable[[Tensor], None]) -> None:
        """Calls `tap` with the stream that enters a block."""

        def hook(_: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any] = UNNAMED) -> None:
            if self.act():
                tap(stream_of(inputs, named))

        self.enter_context(block.register_forward_pre_hook(hook, with_kwargs=True))
