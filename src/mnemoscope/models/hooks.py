"""Read or overwrite what flows through the feed-forward layers while the model runs; always unhooks.

Each is a context manager: hooks are set once on entering and removed on leaving, also after an exception. The
coefficients are the input of the down-projection, whatever the family. Nothing is stored here; what a callback keeps of
a tensor that the model may go on to use, it must copy. Hooks see the forwards of all threads, or, with `own_thread`,
those of the thread that set them, so that several may read one model side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.observed import first

Overwrite = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Block:
    """What passed through one block; every tensor [batch, position, ...], named as in definitions.md section 1."""

    residual: Tensor
    ffn_input: Tensor
    coefficients: Tensor
    ffn_output: Tensor
    ffn_update: Tensor
    layer_output: Tensor


def stream_of(inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """The hidden states among a block's arguments: the first tensor of floating-point numbers."""
    return next(
        value for value in (*inputs, *named.values()) if isinstance(value, Tensor) and value.is_floating_point()
    )


@contextmanager
def read_coefficients(
    model: LanguageModel,
    callback: Callable[[int, Tensor], None],
    *,
    layers: Iterable[int] | None = None,
    own_thread: bool = False,
) -> Iterator[None]:
    """Calls `callback(layer, coefficients [batch, position, memory])` as each layer computes them.

    The tensor is the one that enters the down-projection: the callee must not change it.
    """
    chosen = range(len(model.anatomy.layers)) if layers is None else layers
    taps = {layer: partial(callback, layer) for layer in chosen}
    with overwrite_coefficients(model, taps, own_thread=own_thread):
        yield


@contextmanager
def overwrite_coefficients(
    model: LanguageModel, changes: Mapping[int, Overwrite], *, own_thread: bool = False
) -> Iterator[None]:
    """Replaces the coefficients of the given layers by what their function returns: a new tensor of the same shape, or
    None to leave them.
    """
    looks = _Watched(own_thread)
    with ExitStack() as hooks:
        for layer, change in changes.items():
            down = model.layer(layer).down

            def tap(_: nn.Module, inputs: tuple[Any, ...], change: Overwrite = change) -> tuple[Any, ...] | None:
                if not looks():
                    return None
                coefficients = _only(inputs)
                changed = change(_split_batch(coefficients, model.shape))
                return None if changed is None else (changed.reshape(coefficients.shape), *inputs[1:])

            hooks.enter_context(down.module.register_forward_pre_hook(tap))
        yield


@contextmanager
def read_blocks(
    model: LanguageModel,
    callback: Callable[[int, Block], None],
    *,
    layers: Iterable[int] | None = None,
    own_thread: bool = False,
) -> Iterator[None]:
    """Calls `callback(layer, Block)` as each block ends; raises ModelUnsupported where a part was never reached."""
    with ExitStack() as hooks:
        for layer in range(len(model.anatomy.layers)) if layers is None else layers:
            _watch(model, layer, callback, hooks, _Watched(own_thread))
        yield


class _Watched:
    """Whether hooks look at the forward that runs them; see the module's docstring."""

    def __init__(self, own_thread: bool) -> None:
        self._thread = get_ident() if own_thread else None

    def __call__(self) -> bool:
        return self._thread is None or self._thread == get_ident()


def _watch(
    model: LanguageModel, layer: int, callback: Callable[[int, Block], None], hooks: ExitStack, looks: _Watched
) -> None:
    """Sets the hooks that note the raw tensors of one block and call back as it ends."""
    parts = model.layer(layer)
    seen: dict[str, Tensor] = {}

    def enters(module: nn.Module, name: str) -> None:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if looks():
                seen[name] = _only(inputs)

        hooks.enter_context(module.register_forward_pre_hook(hook))

    def leaves(module: nn.Module, name: str) -> None:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if looks():
                tensor = first(output)
                seen[name] = tensor.clone() if parts.in_place else tensor

        hooks.enter_context(module.register_forward_hook(hook))

    def starting(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if looks():
            seen["block_input"] = stream_of(inputs, named)

    def ending(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if looks():
            block = _assemble(model, layer, seen, first(output))
            seen.clear()
            callback(layer, block)

    enters(parts.gate.module, "ffn_input")
    enters(parts.down.module, "coefficients")
    leaves(parts.down.module, "ffn_output")
    if parts.post_norm is not None:
        leaves(parts.post_norm, "normed_output")
    if parts.attention is not None:
        hooks.enter_context(parts.block.register_forward_pre_hook(starting, with_kwargs=True))
        leaves(parts.attention, "attention")
    elif parts.ffn_norm is not None:
        enters(parts.ffn_norm, "residual")
    hooks.enter_context(parts.block.register_forward_hook(ending))


def _assemble(model: LanguageModel, layer: int, seen: dict[str, Tensor], output: Tensor) -> Block:
    parts = model.layer(layer)
    try:
        if parts.attention is not None:
            residual = seen["block_input"] + seen["attention"]
        else:
            residual = seen["ffn_input" if parts.ffn_norm is None else "residual"]
        update = seen["ffn_output" if parts.post_norm is None else "normed_output"]
        tensors = (residual, seen["ffn_input"], seen["coefficients"], seen["ffn_output"], parts.scale(update), output)
        return Block(*(_split_batch(tensor, model.shape) for tensor in tensors))
    except KeyError as missing:
        raise ModelUnsupported(
            f"layer {layer} of this {model.anatomy.family} model ran without its {missing.args[0]!r} being seen; "
            "its blocks do not compute as the family's row says"
        ) from None


def _only(inputs: tuple[Any, ...]) -> Tensor:
    if not inputs:
        raise ModelUnsupported("a linear map or norm is called by keyword, so its input cannot be tapped")
    return inputs[0]  # type: ignore[no-any-return]


def _split_batch(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    """The tensor as [batch, position, ...]: OPT flattens the two inside its blocks."""
    return tensor.view(*shape, tensor.shape[-1]) if tensor.dim() == 2 else tensor
