"""Finds the anatomy of a model whose family the table does not know, from what its modules do in one small forward.

The blocks are the one ModuleList of length `num_hidden_layers`; the down-projection is the last linear map of a block
back to the hidden size whose input the keys explain; norms, stream and head are found by which tensors equal which.
What is found is a guess from one block; the load-time proof judges it in every layer. Anything that does not fit
together raises ModelUnsupported in one line.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy import Activation, Anatomy, Layer, LinearMap, activation_name, config_value, text_config
from mnemoscope.models.observed import (
    HALF_TOLERANCE,
    ModuleCall,
    Observation,
    distance,
    flat,
    ids_for,
    observe,
    run,
    same,
)

_FUNCTIONS = ("relu", "gelu", "gelu_pytorch_tanh", "silu", "relu2", "tanh", "sigmoid", "quick_gelu", "mish")


@dataclass(frozen=True)
class _Map:
    """A linear map of the first block, as seen."""

    call: ModuleCall
    path: str
    transposed: bool


@dataclass(frozen=True)
class _Keys:
    """How the coefficients come about: paths inside a block, and f (a path or a function)."""

    gate: _Map
    up: _Map | None
    fused: tuple[str, str] | None
    activation: str | Activation
    name: str
    schema_error: float


@torch.inference_mode()
def infer(model: Any) -> Anatomy:
    """The anatomy of a causal language model of an unknown family; raises ModelUnsupported where none is found."""
    config = text_config(model)
    kind = str(config_value(config, "model_type", type(model).__name__)) or type(model).__name__
    path, blocks = _blocks(model, config_value(config, "num_hidden_layers"), kind)
    was_training = model.training
    model.eval()
    try:
        seen = observe(model, int(config.vocab_size))
        inside = f"{path}.0"
        hidden = int(config_value(config, "hidden_size"))
        make, function = _layer_maker(seen, inside, hidden, kind)
        head = _head(model, seen, kind)
        norm, project = _after_blocks(seen, f"{path}.{len(blocks) - 1}", head, kind)
        layers = tuple(make(block) for block in blocks)
        scale, softcap = _scaling(head.given, seen.logits, config, kind)
        backbone = _backbone(model, path, head.taken)
    except (AttributeError, KeyError) as error:
        raise ModelUnsupported(f"family {kind!r} is unknown and its blocks are not alike ({error})") from None
    finally:
        model.train(was_training)
    name = activation_name(config, function)
    return Anatomy("structural", model, backbone, layers, norm, project, head.module, name, scale, softcap)


def _blocks(model: nn.Module, count: object, kind: str) -> tuple[str, list[nn.Module]]:
    lists = [
        (path, list(module))
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and any(True for _ in module.parameters())
    ]
    if len(lists) != 1:
        raise ModelUnsupported(
            f"family {kind!r} is unknown and its blocks cannot be told: {len(lists)} lists of num_hidden_layers = "
            f"{count} modules, where there must be one"
        )
    return lists[0]


def _layer_maker(seen: Observation, inside: str, hidden: int, kind: str) -> tuple[Callable[[nn.Module], Layer], str]:
    """A function that makes a block's `Layer`, by the paths found in the first block, and the name of f."""
    maps = list(_maps(seen, inside))
    for down in maps:
        if down.call.given.shape[1] != hidden:
            continue
        keys = _keys(seen, inside, maps, down)
        if keys is None:
            continue
        stream = _stream(seen, inside, down, keys.gate.call.taken)
        if stream is not None:
            return _assembler(down, keys, *stream), keys.name
    raise ModelUnsupported(
        f"family {kind!r} is unknown and no linear map of its blocks can be read as the values of a feed-forward layer"
    )


def _assembler(down: _Map, keys: _Keys, norms: dict[str, str], scale: float) -> Callable[[nn.Module], Layer]:
    def make(block: nn.Module) -> Layer:
        def whole(found: _Map) -> LinearMap:
            return LinearMap.whole(block.get_submodule(found.path), transposed=found.transposed)

        def part(name: str) -> nn.Module | None:
            return block.get_submodule(norms[name]) if name in norms else None

        gate, up = whole(keys.gate), None if keys.up is None else whole(keys.up)
        if keys.fused is not None:
            gate, up = gate.halves(keys.fused)
        function = keys.activation
        return Layer(
            block=block,
            gate=gate,
            up=up,
            down=whole(down),
            activation=block.get_submodule(function) if isinstance(function, str) else function,
            update_scale=scale,
            in_place=True,
            ffn_norm=part("ffn_norm"),
            post_norm=part("post_norm"),
            output_norm=part("output_norm"),
            attention=part("attention"),
        )

    return make


def _maps(seen: Observation, inside: str) -> Iterator[_Map]:
    """The linear maps that ran in a block, last first; told by their numbers, not by their class."""
    for call in seen.within(inside):
        weight, bias = getattr(call.module, "weight", None), getattr(call.module, "bias", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            continue
        rest: Tensor | float = bias if isinstance(bias, Tensor) else 0.0
        for transposed in (False, True):
            matrix = weight if transposed else weight.T
            if matrix.shape[0] == call.taken.shape[1] and same(call.taken @ matrix + rest, call.given):
                yield _Map(call, call.path.removeprefix(f"{inside}."), transposed)
                break


def _keys(seen: Observation, inside: str, maps: list[_Map], down: _Map) -> _Keys | None:
    """The keys and f that explain the down-projection's input best, or None where nothing does."""
    wanted = down.call.taken
    found = []
    for function, name, f in _activations(seen, inside, wanted.shape):
        for gate in maps:
            raw = gate.call.given
            if raw.shape == wanted.shape and gate is not down:
                found.append(_Keys(gate, None, None, function, name, distance(f(raw), wanted)))
                for up in maps:
                    if up.call.given.shape == wanted.shape and same(up.call.taken, gate.call.taken):
                        schema_error = distance(f(raw) * up.call.given, wanted)
                        found.append(_Keys(gate, up, None, function, name, schema_error))
            elif raw.shape == (wanted.shape[0], 2 * wanted.shape[1]):
                one, two = raw.chunk(2, dim=1)
                found.append(_Keys(gate, None, ("gate", "up"), function, name, distance(f(one) * two, wanted)))
                found.append(_Keys(gate, None, ("up", "gate"), function, name, distance(f(two) * one, wanted)))
    best = min(found, key=lambda keys: keys.schema_error, default=None)
    limit = 1e-4 if wanted.dtype == torch.float32 else HALF_TOLERANCE
    return best if best is not None and best.schema_error < limit else None


def _activations(
    seen: Observation, inside: str, shape: torch.Size
) -> Iterator[tuple[str | Activation, str, Activation]]:
    """Candidates for f: the block's own modules without weights, then the well-known functions."""
    for call in seen.within(inside):
        plain = not list(call.module.parameters()) and not list(call.module.children())
        if plain and call.taken.shape == call.given.shape == shape and call.changes:
            yield call.path.removeprefix(f"{inside}."), type(call.module).__name__.lower(), call.module
    for name in _FUNCTIONS:
        yield ACT2FN[name], name, ACT2FN[name]


def _stream(seen: Observation, inside: str, down: _Map, ffn_input: Tensor) -> tuple[dict[str, str], float] | None:
    """The norms (or the attention of a parallel block), by path, under which the block's sums come out; and the factor
    by which the feed-forward output enters the stream.
    """
    block = seen.calls[inside]
    output = down.call.given
    others = [call for call in seen.within(inside) if not f"{down.call.path}.".startswith(f"{call.path}.")]
    changing = [call for call in others if call.changes and call.taken.shape == call.given.shape]

    def local(call: ModuleCall) -> str:
        return call.path.removeprefix(f"{inside}.")

    after = [call for call in changing if same(call.taken, output)]
    update = after[-1].given if after else output
    sandwich = {"post_norm": local(after[-1])} if after else {}
    before = [call for call in changing if same(call.given, ffn_input)]
    streams: list[tuple[Tensor, dict[str, str]]] = [(call.taken, {"ffn_norm": local(call)}) for call in before]
    streams.append((ffn_input, {}))
    for residual, norms in streams:
        if same(residual + update, block.given):
            return norms | sandwich, 1.0
        scale = float(((block.given - residual) * update).sum() / update.square().sum().clamp_min(1e-30))
        if same(residual + update * scale, block.given):
            return norms | sandwich, scale
        for call in changing:
            if same(call.given, block.given) and same(call.taken, residual + output):
                return norms | {"output_norm": local(call)}, 1.0
    for call in sorted(others, key=lambda call: call.path.count(".")):
        weighted = any(True for _ in call.module.parameters())
        if weighted and call.given.shape == output.shape and same(block.taken + call.given + update, block.given):
            return {"attention": local(call)} | sandwich, 1.0
    return None


def _head(model: Any, seen: Observation, kind: str) -> ModuleCall:
    """The call of the language-model head: the module called so, or the last map to the vocabulary."""
    named = model.get_output_embeddings()
    for call in sorted(seen.calls.values(), key=lambda call: -call.order):
        if call.module is named or (named is None and call.given.shape == seen.logits.shape):
            return call
    raise ModelUnsupported(f"family {kind!r} is unknown and no module of it computes scores over the vocabulary")


def _after_blocks(
    seen: Observation, last: str, head: ModuleCall, kind: str
) -> tuple[nn.Module | None, nn.Module | None]:
    """The final norm and the projection between the last block and the head, each where there is one."""
    stream = seen.calls[last].given
    later = [call for call in seen.calls.values() if call.order > seen.calls[last].order and call is not head]
    leaves = [call for call in later if not list(call.module.children())]

    def is_map(call: ModuleCall) -> bool:
        return getattr(call.module, "weight", torch.empty(0)).dim() == 2

    if same(stream, head.taken):
        return None, None
    for one in leaves:
        if same(one.taken, stream) and same(one.given, head.taken):
            return (None, one.module) if is_map(one) else (one.module, None)
    for one in leaves:
        for two in leaves:
            if same(one.taken, stream) and same(two.taken, one.given) and same(two.given, head.taken) and is_map(two):
                return one.module, two.module
    raise ModelUnsupported(f"family {kind!r} is unknown and what lies between its last block and its head is unclear")


def _scaling(scores: Tensor, logits: Tensor, config: Any, kind: str) -> tuple[float, float | None]:
    """The factor or soft-cap that turns the head's scores into logits."""
    if same(scores, logits):
        return 1.0, None
    cap = config_value(config, "final_logit_softcapping")
    if isinstance(cap, float | int) and cap and same(torch.tanh(scores / cap) * cap, logits):
        return 1.0, float(cap)
    factor = float((scores * logits).sum() / scores.square().sum())
    if scores.shape == logits.shape and same(scores * factor, logits):
        return factor, None
    raise ModelUnsupported(f"family {kind!r} is unknown and its logits are not its head's scores, scaled or capped")


def _backbone(model: Any, path: str, wanted: Tensor) -> nn.Module | None:
    """The module that runs the blocks without the head; None where only the whole model does."""
    parent = path.rpartition(".")[0]
    if not parent:
        return None
    module: nn.Module = model.get_submodule(parent)
    try:
        given = run(module, ids_for(model, int(text_config(model).vocab_size)))
    except TypeError:
        return None
    return module if same(flat(given), wanted) else None
