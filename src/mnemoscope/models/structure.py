"""Finds the anatomy of a model whose family the table does not know, from what its modules do in one small forward.

The blocks are the one ModuleList of length `num_hidden_layers`; the down-projection is the last linear map of a block
back to the hidden size whose input the keys explain; norms, stream and head are found by which tensors equal which.
What is found in the first block becomes a row as families.py has them, and is a guess: the load-time proof judges it
in every layer. Anything that does not fit together raises ModelUnsupported in one line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mnemoscope.errors import ModelUnsupported
from mnemoscope.models.anatomy import Activation, Anatomy, activation_name, resolve_layer, text_config
from mnemoscope.models.families import Family
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


class _Unclear(Exception):
    """Says what of the model cannot be told."""


@dataclass(frozen=True)
class _Keys:
    """How the coefficients may come about: f (a path or a function), and its error against what was seen."""

    error: float
    gate: ModuleCall
    activation: str | Activation
    name: str
    up: ModuleCall | None = None
    fused: tuple[str, str] | None = None


@torch.inference_mode()
def infer(model: Any) -> Anatomy:
    """The anatomy of a model of an unknown family, which is at rest; raises ModelUnsupported where none is found."""
    config = text_config(model)
    kind = str(getattr(config, "model_type", "") or type(model).__name__)
    try:
        path, blocks = _blocks(model, getattr(config, "num_hidden_layers", None))
        seen = observe(model, int(config.vocab_size))
        row, scale = _row(seen, path, int(config.hidden_size))
        head = _head(model, seen)
        norm, project = _after_blocks(seen, f"{path}.{len(blocks) - 1}", head)
        layers = tuple(resolve_layer(block, row, scale) for block in blocks)
        factor, softcap = _scaling(head.given, seen.logits, config)
        backbone = _backbone(model, path, head.taken)
    except _Unclear as reason:
        raise ModelUnsupported(f"family {kind!r} is unknown and {reason}") from None
    except (AttributeError, KeyError) as error:
        raise ModelUnsupported(f"family {kind!r} is unknown and its blocks are not alike ({error})") from None
    name = activation_name(config, str(row.activation_name))
    return Anatomy(row.name, model, backbone, layers, norm, project, head.module, name, factor, softcap)


def _blocks(model: nn.Module, count: object) -> tuple[str, list[nn.Module]]:
    lists = [
        (path, list(module))
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and any(True for _ in module.parameters())
    ]
    if len(lists) != 1:
        raise _Unclear(
            f"its blocks cannot be told: {len(lists)} lists of num_hidden_layers = {count} modules, "
            "where there must be one"
        )
    return lists[0]


def _row(seen: Observation, path: str, hidden: int) -> tuple[Family, float]:
    """The row that describes the first block, and the factor by which its feed-forward output enters the stream."""
    block = seen.calls[f"{path}.0"]
    inside = seen.within(block.path)
    maps = {call: transposed for call in inside if (transposed := _is_transposed(call)) is not None}
    for down in maps:
        keys = _keys(inside, list(maps), down) if down.given.shape[1] == hidden else None
        if keys is None:
            continue
        row = Family(
            "structural",
            blocks=path,
            keys=keys.gate.path,
            up=None if keys.up is None else keys.up.path,
            fused=keys.fused,
            down=down.path,
            activation=keys.activation,
            activation_name=keys.name,
            in_place=True,
            transposed=tuple(call.path for call, transposed in maps.items() if transposed),
        )
        found = _with_norms(row, block, inside, down, keys.gate.taken)
        if found is not None:
            return found
    raise _Unclear("no linear map of its blocks can be read as the values of a feed-forward layer")


def _is_transposed(call: ModuleCall) -> bool | None:
    """Whether a linear map stores its matrix as [in, out]; None for what is no such map, told by its numbers."""
    weight, bias = getattr(call.module, "weight", None), getattr(call.module, "bias", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    rest: Tensor | float = bias if isinstance(bias, Tensor) else 0.0
    for transposed, matrix in ((False, weight.T), (True, weight)):
        if matrix.shape[0] == call.taken.shape[1] and same(call.taken @ matrix + rest, call.given):
            return transposed
    return None


def _keys(inside: list[ModuleCall], maps: list[ModuleCall], down: ModuleCall) -> _Keys | None:
    """The keys and f that explain the down-projection's input best, or None where nothing does."""
    wanted = down.taken
    found = []
    for function, name, f in _activations(inside, wanted.shape):
        for gate in maps:
            if gate.given.shape == wanted.shape and gate is not down:
                raw = f(gate.given)
                found.append(_Keys(distance(raw, wanted), gate, function, name))
                for up in maps:
                    if up.given.shape == wanted.shape and same(up.taken, gate.taken):
                        found.append(_Keys(distance(raw * up.given, wanted), gate, function, name, up=up))
            elif gate.given.shape == (wanted.shape[0], 2 * wanted.shape[1]):
                one, two = gate.given.chunk(2, dim=1)
                for raw, other, fused in ((one, two, ("gate", "up")), (two, one, ("up", "gate"))):
                    found.append(_Keys(distance(f(raw) * other, wanted), gate, function, name, fused=fused))
    best = min(found, key=lambda keys: keys.error, default=None)
    limit = 1e-4 if wanted.dtype == torch.float32 else HALF_TOLERANCE
    return best if best is not None and best.error < limit else None


def _activations(inside: list[ModuleCall], shape: torch.Size) -> Iterator[tuple[str | Activation, str, Activation]]:
    """Candidates for f: the block's own modules without weights, then the well-known functions."""
    for call in inside:
        plain = not list(call.module.parameters()) and not list(call.module.children())
        if plain and call.taken.shape == call.given.shape == shape and call.changes:
            yield call.path, type(call.module).__name__.lower(), call.module
    for name in _FUNCTIONS:
        yield ACT2FN[name], name, ACT2FN[name]


def _with_norms(
    row: Family, block: ModuleCall, inside: list[ModuleCall], down: ModuleCall, ffn_input: Tensor
) -> tuple[Family, float] | None:
    """The row with the norms (or the attention of a parallel block) under which the block's sums come out; and the
    factor by which the feed-forward output enters the stream.
    """
    output = down.given
    others = [call for call in inside if not f"{down.path}.".startswith(f"{call.path}.")]
    changing = [call for call in others if call.changes and call.taken.shape == call.given.shape]
    after = [call for call in changing if same(call.taken, output)]
    update = after[-1].given if after else output
    post_norm = after[-1].path if after else None
    streams = [(call.taken, call.path) for call in changing if same(call.given, ffn_input)]
    for residual, ffn_norm in [*streams, (ffn_input, None)]:
        normed = replace(row, ffn_norm=ffn_norm, post_norm=post_norm)
        if same(residual + update, block.given):
            return normed, 1.0
        scale = float(((block.given - residual) * update).sum() / update.square().sum().clamp_min(1e-30))
        if same(residual + update * scale, block.given):
            return normed, scale
        for call in changing:
            if same(call.given, block.given) and same(call.taken, residual + output):
                return replace(row, ffn_norm=ffn_norm, output_norm=call.path), 1.0
    for call in sorted(others, key=lambda call: call.path.count(".")):
        weighted = any(True for _ in call.module.parameters())
        if weighted and call.given.shape == output.shape and same(block.taken + call.given + update, block.given):
            return replace(row, attention=call.path, post_norm=post_norm), 1.0
    return None


def _head(model: Any, seen: Observation) -> ModuleCall:
    """The call of the language-model head: the module called so, or the last map to the vocabulary."""
    named = model.get_output_embeddings()
    for call in reversed(seen.calls.values()):
        if call.module is named or (named is None and call.given.shape == seen.logits.shape):
            return call
    raise _Unclear("no module of it computes scores over the vocabulary")


def _after_blocks(seen: Observation, last: str, head: ModuleCall) -> tuple[nn.Module | None, nn.Module | None]:
    """The final norm and the projection between the last block and the head, each where there is one."""
    stream, calls = seen.calls[last].given, list(seen.calls.values())
    later = calls[calls.index(seen.calls[last]) + 1 :]
    leaves = [call for call in later if call is not head and not list(call.module.children())]

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
    raise _Unclear("what lies between its last block and its head is unclear")


def _scaling(scores: Tensor, logits: Tensor, config: Any) -> tuple[float, float | None]:
    """The factor or soft-cap that turns the head's scores into logits."""
    if same(scores, logits):
        return 1.0, None
    cap = getattr(config, "final_logit_softcapping", None)
    if isinstance(cap, float | int) and cap and same(torch.tanh(scores / cap) * cap, logits):
        return 1.0, float(cap)
    factor = float((scores * logits).sum() / scores.square().sum())
    if scores.shape == logits.shape and same(scores * factor, logits):
        return factor, None
    raise _Unclear("its logits are not its head's scores, scaled or capped")


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
