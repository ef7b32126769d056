"""Reads or overwrites what flows through the feed-forward layers while the model runs; always unhooks.

Each function is a context manager: it sets hooks once on entering and removes them on leaving, also after an exception.
The coefficients are the input of the down-projection, whatever the family; those of experts are weighted by the router.
Nothing is stored here; a callback must copy what it keeps of a tensor that the model may go on to use. Hooks see the
forwards of all threads, or, with `own_thread`, those of the thread that set them, so several threads may read one
model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.memories.expert_taps import Group, Looks, change, place, visit, weights_of
from mnemoscope.models.memories.experts import MixtureFeedForward
from mnemoscope.models.modules.observed import UNNAMED, first, stream_of

Overwrite = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Block:
    """The tensors of one block; each [batch, position, ...], named as in definitions.md section 1.

    `weights [batch, position, expert]` are the routers', zero where a token was not routed; None in a dense layer.
    `opened [batch, position, hidden]` is the output of the output gate's map; None without such a gate. `branches` are
    the inputs of the norms behind a layer's branches, in order.
    """

    residual: Tensor
    ffn_input: Tensor
    coefficients: Tensor
    ffn_output: Tensor
    ffn_update: Tensor
    layer_output: Tensor
    weights: Tensor | None = None
    opened: Tensor | None = None
    branches: tuple[Tensor, ...] = ()


@contextmanager
def read_groups(
    model: LanguageModel,
    callback: Callable[[int, Group], None],
    *,
    layers: Iterable[int] | None = None,
    own_thread: bool = False,
) -> Iterator[None]:
    """Calls `callback(layer, group)` as a layer's experts compute: once for the routed ones, once for each shared one.

    A dense layer's group has coefficients `[batch, position, memory]`. The tensors are the model's own: do not change
    them.
    """
    with model.in_use(), ExitStack() as hooks:
        for layer in range(len(model.anatomy.layers)) if layers is None else layers:
            _visit(model, layer, partial(callback, layer), hooks, Watched(own_thread))
        yield


@contextmanager
def read_coefficients(
    model: LanguageModel,
    callback: Callable[[int, Tensor], None],
    *,
    layers: Iterable[int] | None = None,
    own_thread: bool = False,
) -> Iterator[None]:
    """Calls `callback(layer, coefficients [batch, position, memory])` as each layer computes them.

    Memories of experts are numbered through the layer; those of experts that a token does not use are zero. The tensor
    may be the down-projection's input: do not change it.
    """
    with model.in_use(), ExitStack() as hooks:
        for layer in range(len(model.anatomy.layers)) if layers is None else layers:

            def deliver(coefficients: Tensor, _: Tensor | None, layer: int = layer) -> None:
                callback(layer, coefficients)

            _gather(model, layer, deliver, hooks, Watched(own_thread))
        yield


@contextmanager
def overwrite_coefficients(
    model: LanguageModel, changes: Mapping[int, Overwrite], *, own_thread: bool = False
) -> Iterator[None]:
    """Replaces the coefficients of the given layers by the result of their function; None leaves them.

    The result is a new tensor of the same shape. In a layer of experts the function is called once for all routed
    experts and once for each shared one, with zeros in place of the others; its result counts only where a token was
    routed.
    """
    looks = Watched(own_thread)
    with model.in_use(), ExitStack() as hooks:
        for layer, overwrite in changes.items():
            ffn = model.layer(layer).ffn

            def tap(_: nn.Module, inputs: tuple[Any, ...], overwrite: Overwrite = overwrite) -> tuple[Any, ...] | None:
                if not looks():
                    return None
                coefficients = _only(inputs)
                changed = overwrite(_split_batch(coefficients, model.shape))
                return None if changed is None else (changed.reshape(coefficients.shape), *inputs[1:])

            def overwrite_flat(coefficients: Tensor, overwrite: Overwrite = overwrite) -> Tensor | None:
                changed = overwrite(_split_batch(coefficients, model.shape))
                return None if changed is None else changed.reshape(coefficients.shape)

            if isinstance(ffn, MixtureFeedForward):
                change(ffn, overwrite_flat, looks=looks, hooks=hooks)
            else:
                hooks.enter_context(ffn.exits[-1].register_forward_pre_hook(tap))
        yield


def _visit(
    model: LanguageModel, layer: int, visitor: Callable[[Group], None], hooks: ExitStack, looks: Looks
) -> None:
    ffn = model.layer(layer).ffn

    def tap(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if looks():
            coefficients = _split_batch(_only(inputs), model.shape)
            visitor(Group(coefficients, coefficients[..., 0].numel()))

    if isinstance(ffn, MixtureFeedForward):
        visit(ffn, visitor, looks=looks, hooks=hooks)
    else:
        hooks.enter_context(ffn.exits[-1].register_forward_pre_hook(tap))


def _gather(
    model: LanguageModel,
    layer: int,
    callback: Callable[[Tensor, Tensor | None], None],
    hooks: ExitStack,
    looks: Looks,
) -> None:
    """Sets hooks that call back once with `[batch, position, memory]`, and `[batch, position, expert]` or None."""
    ffn, parts = model.layer(layer).ffn, []

    def take(group: Group) -> None:
        if not isinstance(ffn, MixtureFeedForward):
            callback(group.coefficients, None)
            return
        parts.append(group)
        if len(parts) <= len(ffn.shared):
            return
        whole = group.coefficients.new_zeros(group.of, ffn.numbering.count)
        for part in parts:
            place(whole, part)
        weights = torch.stack([weights_of(part, len(ffn.numbering.widths)) for part in parts]).sum(0)
        parts.clear()
        callback(*(_split_batch(tensor, model.shape) for tensor in (whole, weights)))

    _visit(model, layer, take, hooks, looks)


@contextmanager
def read_blocks(
    model: LanguageModel,
    callback: Callable[[int, Block], None],
    *,
    layers: Iterable[int] | None = None,
    own_thread: bool = False,
) -> Iterator[None]:
    """Calls `callback(layer, Block)` as each block ends; raises ModelUnsupported where a part was never reached."""
    with model.in_use(), ExitStack() as hooks:
        for layer in range(len(model.anatomy.layers)) if layers is None else layers:
            _watch(model, layer, callback, hooks, Watched(own_thread))
        yield


@contextmanager
def read_final(
    model: LanguageModel, callback: Callable[[Tensor], None], *, own_thread: bool = False
) -> Iterator[None]:
    """Calls `callback(stream [batch, position, hidden])` with the last block's output, even if it has no layer."""
    looks = Watched(own_thread)

    def ending(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if looks():
            callback(_split_batch(first(output), model.shape))

    with model.in_use(), model.anatomy.last_block.register_forward_hook(ending):
        yield


class Watched:
    """Whether hooks act in the running forward: in every thread, or only in the thread that set them."""

    def __init__(self, own_thread: bool) -> None:
        self._thread = get_ident() if own_thread else None

    def __call__(self) -> bool:
        return self._thread is None or self._thread == get_ident()


def _watch(
    model: LanguageModel, layer: int, callback: Callable[[int, Block], None], hooks: ExitStack, looks: Watched
) -> None:
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

    def starting(_: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any] = UNNAMED) -> None:
        if looks():
            seen["block_input"] = stream_of(inputs, named)

    def ending(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if looks():
            block = _assemble(model, layer, seen, seen.get("onward", parts.unscale(first(output))))
            seen.clear()
            callback(layer, block)

    def note_coefficients(coefficients: Tensor, weights: Tensor | None) -> None:
        seen["coefficients"] = coefficients
        if weights is not None:
            seen["weights"] = weights

    enters(parts.ffn.entry, "ffn_input")
    _gather(model, layer, note_coefficients, hooks, looks)
    for number, branch in enumerate(parts.ffn.branches):
        enters(branch.behind, f"branch{number}")
    for number, module in enumerate(parts.ffn.exits):
        leaves(module, f"ffn_output{number}")
    if parts.post_norm is not None:
        leaves(parts.post_norm, "normed_output")
    if parts.output_gate is not None:
        leaves(parts.output_gate, "opened")
    if parts.onward is not None:
        enters(parts.onward, "onward")
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
            attention = seen["attention"]  # the block's input may still be on the previous block's device
            residual = seen["block_input"].to(attention.device) + attention
        else:
            residual = seen["ffn_input" if parts.ffn_norm is None else "residual"]
        written = [seen[f"ffn_output{number}"] for number in range(len(parts.ffn.exits))]
        ffn_output = sum(written[1:], start=written[0])
        update = ffn_output if parts.post_norm is None else seen["normed_output"]
        if parts.output_gate is not None:
            update = parts.through_gate(update, seen["opened"])
        entered = [seen[f"branch{number}"] for number in range(len(parts.ffn.branches))]
        tensors = (residual, seen["ffn_input"], seen["coefficients"], ffn_output, parts.scale(update), output, *entered)
        shaped = [_split_batch(tensor, model.shape) for tensor in tensors]
        weights, opened, branches = seen.get("weights"), seen.get("opened"), tuple(shaped[6:])
        return Block(*shaped[:6], weights=weights, opened=opened, branches=branches)  # type: ignore[arg-type,misc]
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
