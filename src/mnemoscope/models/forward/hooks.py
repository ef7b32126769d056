"""Reads or overwrites what flows through the feed-forward layers while the model runs; always unhooks.

Each function is a context manager: it sets hooks once on entering and removes them on leaving, also after an exception.
The coefficients are the input of the down-projection, whatever the family; those of experts are weighted by the router.
Nothing is stored here; a callback must copy what it keeps of a tensor that the model may go on to use. Hooks see the
forwards of all threads, or, with `own_thread`, those of the thread (and coroutine) that set them, so several threads
may read one model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.memories.feed_forward import Overwrite
from mnemoscope.models.memories.groups import Group
from mnemoscope.models.modules.taps import Taps

Layers = Iterable[int] | None
"""The layers that are read; None are all."""


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
def _tap_layers(
    model: LanguageModel, layers: Layers, tap: Callable[[int, Taps], None], *, own_thread: bool
) -> Iterator[None]:
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        for layer in range(model.sizes.layers) if layers is None else layers:
            tap(layer, taps)
        yield


def read_groups(
    model: LanguageModel, callback: Callable[[int, Group], None], *, layers: Layers, own_thread: bool
) -> AbstractContextManager[None]:
    """Calls `callback(layer, group)` for each group of a layer (`FeedForward.watch`). Do not change the tensors."""

    def tap(layer: int, taps: Taps) -> None:
        model.layer(layer).ffn.watch(partial(callback, layer), taps)

    return _tap_layers(model, layers, tap, own_thread=own_thread)


def read_coefficients(
    model: LanguageModel, callback: Callable[[int, Tensor], None], *, layers: Layers = None, own_thread: bool = False
) -> AbstractContextManager[None]:
    """Calls `callback(layer, coefficients [batch, position, memory])` as each layer computes them.

    Memories of experts are numbered through the layer; those of experts that a token does not use are zero. The tensor
    may be the down-projection's input: do not change it.
    """

    def tap(layer: int, taps: Taps) -> None:
        model.watch(layer, lambda coefficients, _: callback(layer, coefficients), taps)

    return _tap_layers(model, layers, tap, own_thread=own_thread)


def overwrite_coefficients(
    model: LanguageModel, changes: Mapping[int, Overwrite], *, own_thread: bool = False
) -> AbstractContextManager[None]:
    """Replaces the coefficients of the given layers by the result of their function; None leaves them.

    The result is a new tensor of the same shape. In a layer of experts the function is called once for all routed
    experts and once for each shared one, with zeros in place of the others; its result counts only where a token was
    routed.
    """

    def tap(layer: int, taps: Taps) -> None:
        def change(coefficients: Tensor) -> Tensor | None:
            changed = changes[layer](model.split_batch(coefficients))
            return None if changed is None else changed.reshape(coefficients.shape)

        model.layer(layer).ffn.overwrite(change, taps)

    return _tap_layers(model, changes, tap, own_thread=own_thread)


def read_blocks(
    model: LanguageModel, callback: Callable[[int, Block], None], *, layers: Layers = None, own_thread: bool = False
) -> AbstractContextManager[None]:
    """Calls `callback(layer, Block)` as each block ends."""
    return _tap_layers(model, layers, partial(_watch, model, callback), own_thread=own_thread)


@contextmanager
def read_final(model: LanguageModel, callback: Callable[[Tensor], None], *, own_thread: bool = False) -> Iterator[None]:
    """Calls `callback(stream [batch, position, hidden])` with the last block's output, even if it has no layer."""
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        taps.leaves(model.anatomy.last_block, lambda stream: callback(model.split_batch(stream)))
        yield


def _watch(model: LanguageModel, callback: Callable[[int, Block], None], layer: int, taps: Taps) -> None:
    parts = model.layer(layer)
    seen: dict[str, Tensor] = {}
    read = {"ffn_input": parts.ffn.entry, "residual": parts.ffn_norm, "onward": parts.onward}
    read |= {f"branch{number}": branch.behind for number, branch in enumerate(parts.ffn.branches)}
    written = {"normed_output": parts.post_norm, "opened": parts.output_gate, "attention": parts.attention}
    written |= {f"ffn_output{number}": module for number, module in enumerate(parts.ffn.exits)}

    def note_coefficients(coefficients: Tensor, weights: Tensor | None) -> None:
        seen.update({"coefficients": coefficients} | ({} if weights is None else {"weights": weights}))

    def ending(output: Tensor) -> None:
        block = _assemble(model, layer, seen, seen.get("onward", parts.unscale(output)))
        seen.clear()
        callback(layer, block)

    if parts.attention is not None:
        taps.begins(parts.block, partial(seen.__setitem__, "block_input"))
    for name, module in read.items():
        if module is not None:
            taps.enters(module, partial(seen.__setitem__, name))
    for name, module in written.items():
        if module is not None:  # some blocks go on to change these in place
            taps.leaves(module, lambda tensor, name=name: seen.update({name: tensor.clone()}))  # type: ignore[misc]
    model.watch(layer, note_coefficients, taps)
    taps.leaves(parts.block, ending)


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
        shaped = [model.split_batch(tensor) for tensor in tensors]
        weights, opened, branches = seen.get("weights"), seen.get("opened"), tuple(shaped[6:])
        return Block(*shaped[:6], weights=weights, opened=opened, branches=branches)  # type: ignore[arg-type,misc]
    except KeyError as missing:
        raise ModelUnsupported(
            f"layer {layer} of this {model.anatomy.family} model ran without its {missing.args[0]!r} being seen; "
            "its blocks do not compute as the family's row says"
        ) from None
