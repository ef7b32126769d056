"""Reads or overwrites what flows through the feed-forward layers while the model runs; always unhooks.

Each function is a context manager: it sets hooks once on entering and removes them on leaving, also after an exception.
The coefficients are the input of the down-projection, whatever the family; those of experts are weighted by the router.
Nothing is stored here; a callback must copy what it keeps of a tensor that the model may go on to use. Hooks see the
forwards of all threads, or, with `own_thread`, those of the thread that set them, so several threads may read one
model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.language_model import LanguageModel
from mnemoscope.models.memories.feed_forward import Overwrite
from mnemoscope.models.memories.groups import Group
from mnemoscope.models.modules.taps import Taps


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
    """Calls `callback(layer, group)` for each group of a layer (`FeedForward.watch`). Do not change the tensors."""
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        for layer in _every(model, layers):
            model.layer(layer).ffn.watch(partial(callback, layer), taps)
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
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        for layer in _every(model, layers):
            model.watch(layer, lambda coefficients, _, layer=layer: callback(layer, coefficients), taps)  # type: ignore[misc]
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
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        for layer, overwrite in changes.items():

            def change(coefficients: Tensor, overwrite: Overwrite = overwrite) -> Tensor | None:
                changed = overwrite(model.split_batch(coefficients))
                return None if changed is None else changed.reshape(coefficients.shape)

            model.layer(layer).ffn.overwrite(change, taps)
        yield


def _every(model: LanguageModel, layers: Iterable[int] | None) -> Iterable[int]:
    return range(model.sizes.layers) if layers is None else layers


@contextmanager
def read_blocks(
    model: LanguageModel,
    callback: Callable[[int, Block], None],
    *,
    layers: Iterable[int] | None = None,
    own_thread: bool = False,
) -> Iterator[None]:
    """Calls `callback(layer, Block)` as each block ends; raises ModelUnsupported where a part was never reached."""
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        for layer in _every(model, layers):
            _watch(model, layer, callback, taps)
        yield


@contextmanager
def read_final(model: LanguageModel, callback: Callable[[Tensor], None], *, own_thread: bool = False) -> Iterator[None]:
    """Calls `callback(stream [batch, position, hidden])` with the last block's output, even if it has no layer."""
    with model.in_use(), Taps(own_thread=own_thread) as taps:
        taps.leaves(model.anatomy.last_block, lambda stream: callback(model.split_batch(stream)))
        yield


def _watch(model: LanguageModel, layer: int, callback: Callable[[int, Block], None], taps: Taps) -> None:
    parts = model.layer(layer)
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[Tensor], None]:
        return partial(seen.__setitem__, name)

    def note_output(module: nn.Module, name: str) -> None:
        taps.leaves(module, lambda tensor: seen.update({name: tensor.clone() if parts.in_place else tensor}))

    def note_coefficients(coefficients: Tensor, weights: Tensor | None) -> None:
        seen["coefficients"] = coefficients
        if weights is not None:
            seen["weights"] = weights

    def ending(output: Tensor) -> None:
        block = _assemble(model, layer, seen, seen.get("onward", parts.unscale(output)))
        seen.clear()
        callback(layer, block)

    taps.enters(parts.ffn.entry, note("ffn_input"))
    model.watch(layer, note_coefficients, taps)
    for number, branch in enumerate(parts.ffn.branches):
        taps.enters(branch.behind, note(f"branch{number}"))
    for number, module in enumerate(parts.ffn.exits):
        note_output(module, f"ffn_output{number}")
    if parts.post_norm is not None:
        note_output(parts.post_norm, "normed_output")
    if parts.output_gate is not None:
        note_output(parts.output_gate, "opened")
    if parts.onward is not None:
        taps.enters(parts.onward, note("onward"))
    if parts.attention is not None:
        taps.begins(parts.block, note("block_input"))
        note_output(parts.attention, "attention")
    elif parts.ffn_norm is not None:
        taps.enters(parts.ffn_norm, note("residual"))
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
